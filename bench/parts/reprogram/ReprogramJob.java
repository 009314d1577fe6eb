import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource.NumberSequenceSplit;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiter;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiterStrategy;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;

/**
 * The job of Flink whose program changes: numbers by the clock -> a filter, or none -> keyBy -> counts in one pane of a map,
 * or two of them -> the sink of PacedJob. The keys are loaded first; then the clock begins at a moment that a file tells, so
 * that a savepoint has nothing of it.
 * nbq8: the keys are people, whose texts are kept; all other numbers are auctions, which are kept in a list of each person.
 * Arguments: smq|nbq5|nbq8 EVERY(1: no filter) COLUMNS(1, 2) RATE KEYS OUT_DIR CLOCK_FILE
 */
public class ReprogramJob {
  static final long EACH = 1L << 42, INSTANCES = 80, PANE = 0;
  static final int WORDS = 28;

  public static void main(String[] a) throws Exception {
    final boolean smq = "smq".equals(a[0]);
    final long every = Long.parseLong(a[1]), keys = Long.parseLong(a[4]);
    StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
    DataStream<Tuple2<Long, Long>> numbers = env.fromSource(
        new DataGeneratorSource<>(new Numbers(keys, Double.parseDouble(a[3]), a[6]), EACH * PacedJob.SPLITS, behindKeys(keys, a[6]), Types.TUPLE(Types.LONG, Types.LONG)),
        WatermarkStrategy.noWatermarks(), "numbers").uid("numbers");
    DataStream<Tuple2<Long, Long>> passing = every == 1 ? numbers : numbers.filter(r -> r.f0 % every == 0);
    TypeInformation<Tuple4<Long, Long, Long, Long>> rows = Types.TUPLE(Types.LONG, Types.LONG, Types.LONG, Types.LONG);
    final int columns = Integer.parseInt(a[2]);
    var made = "nbq8".equals(a[0]) ? passing.keyBy(r -> r.f0, Types.LONG).process(new Pairs(columns))
        : passing.keyBy(r -> smq ? String.valueOf(r.f0 % INSTANCES) : text(r.f0), Types.STRING).process(new Counts(columns));
    made.returns(rows)
        .uid("counts").name("counts").sinkTo(new PacedJob.Ages(a[5], 5)).uid("sink").name("sink");
    env.execute("reprogram");
  }

  /** The key of this number, as Ferry's job has it; records have the number alone, which is less to send. */
  static String text(long n) {
    byte[] made = new byte[8 * WORDS];
    for (int i = 0; i < WORDS; i++) {
      long word = Numbers.mix(n * WORDS + i + 1);
      for (int j = 0; j < 8; j++) made[8 * i + j] = (byte) ((word >>> 8 * j & 63) + 48);
    }
    return new String(made, java.nio.charset.StandardCharsets.ISO_8859_1);
  }

  /** Number of an arrival -> (number of a key, created in milliseconds, or less than 0 while keys are loaded), when it is due. */
  static class Numbers implements GeneratorFunction<Long, Tuple2<Long, Long>> {
    final long keys; final double rate; final String clock; transient long begin;
    Numbers(long keys, double rate, String clock) { this.keys = keys; this.rate = rate; this.clock = clock; }
    public Tuple2<Long, Long> map(Long i) throws Exception {
      long n = i % EACH * PacedJob.SPLITS + i / EACH;
      if (n < keys) return Tuple2.of(n, -1L);
      while (begin == 0) {
        Path file = Path.of(clock);
        if (Files.exists(file)) begin = Long.parseLong(Files.readString(file)); else Thread.sleep(20);
      }
      long micros = (long) ((n - keys) / rate * 1e6), wait = begin * 1000 + micros - System.currentTimeMillis() * 1000;
      if (wait > 0) Thread.sleep((wait + 999) / 1000);
      return Tuple2.of(keys == 0 ? n : Long.remainderUnsigned(mix(n), keys), begin + micros / 1000);
    }
    static long mix(long x) {
      x = (x ^ x >>> 30) * 0xBF58476D1CE4E5B9L; x = (x ^ x >>> 27) * 0x94D049BB133111EBL; return x ^ x >>> 31;
    }
  }

  static RateLimiterStrategy<NumberSequenceSplit> behindKeys(long keys, String clock) {
    return readers -> new BehindKeys(keys / readers, clock);
  }

  /** Lets a reader read its part of the keys. Then it waits for the clock without the thread of its task, so that barriers pass:
   * a reader that is ready early and holds up a barrier would hold up the keys of the other one, behind the same barrier. */
  static class BehindKeys implements RateLimiter<NumberSequenceSplit> {
    final Path clock; long left; boolean begun;
    BehindKeys(long left, String clock) { this.left = left; this.clock = Path.of(clock); }
    @Override public CompletionStage<Void> acquire(int many) {
      left -= begun ? 0 : many;
      if (begun || left >= 0 || (begun = Files.exists(clock))) return CompletableFuture.completedFuture(null);
      return CompletableFuture.runAsync(() -> {
        while (!Files.exists(clock)) try { Thread.sleep(20); } catch (InterruptedException e) { return; }
      });
    }
  }

  /** Keeps the text of each person, and the number of each auction, with its time or without; passes on when an auction was created. */
  static class Pairs extends KeyedProcessFunction<Long, Tuple2<Long, Long>, Tuple4<Long, Long, Long, Long>> {
    final int columns; transient ValueState<String> name; transient ListState<Long> auctions, created;
    Pairs(int columns) { this.columns = columns; }
    @Override public void open(OpenContext c) {
      name = getRuntimeContext().getState(new ValueStateDescriptor<>("name", Types.STRING));
      auctions = getRuntimeContext().getListState(new ListStateDescriptor<>("auctions", Types.LONG));
      if (columns > 1) created = getRuntimeContext().getListState(new ListStateDescriptor<>("created", Types.LONG));
    }
    @Override public void processElement(Tuple2<Long, Long> r, Context c, Collector<Tuple4<Long, Long, Long, Long>> out) throws Exception {
      if (r.f1 < 0) { name.update(text(r.f0)); return; }
      auctions.add(r.f0);
      if (columns > 1) created.add(r.f1);
      out.collect(Tuple4.of(r.f1, 0L, 0L, 0L));
    }
  }

  /** Counts each key, in one column or two, and passes on when a record was created. */
  static class Counts extends KeyedProcessFunction<String, Tuple2<Long, Long>, Tuple4<Long, Long, Long, Long>> {
    final int columns; transient MapState<Long, Long> num, recent;
    Counts(int columns) { this.columns = columns; }
    @Override public void open(OpenContext c) {
      num = getRuntimeContext().getMapState(new MapStateDescriptor<>("num", Types.LONG, Types.LONG));
      if (columns > 1) recent = getRuntimeContext().getMapState(new MapStateDescriptor<>("recent", Types.LONG, Types.LONG));
    }
    @Override public void processElement(Tuple2<Long, Long> r, Context c, Collector<Tuple4<Long, Long, Long, Long>> out) throws Exception {
      add(num);
      if (columns > 1) add(recent);
      if (r.f1 >= 0) out.collect(Tuple4.of(r.f1, 0L, 0L, 0L));
    }
    static void add(MapState<Long, Long> counts) throws Exception {
      Long had = counts.get(PANE);
      counts.put(PANE, had == null ? 1 : had + 1);
    }
  }
}
