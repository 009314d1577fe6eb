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
import org.apache.flink.api.connector.sink2.Committer;
import org.apache.flink.api.connector.sink2.CommitterInitContext;
import org.apache.flink.api.connector.sink2.CommittingSinkWriter;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SupportsCommitter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.reader.TextLineInputFormat;
import org.apache.flink.core.fs.Path;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * The latency benchmark's job for Flink: a stream that follows the clock -> keyBy -> windows -> a sink that is told of each
 * record when its effect has been made, and again when a checkpoint makes it durable. The stream is made here, or read from
 * files, whose keys are counted without windows.
 * Arguments: QUERY (nbq5, nbq8, ysb, q11, files) RATE BEGIN_MS OUT_DIR [FILES_DIR]
 * RATE: arrivals a second, or "seconds:rate,seconds:rate,...", which begins again behind the last step.
 */
public class PacedJob {
  static final int SPLITS = 2;
  static final long GAP = 10_000;

  public static void main(String[] a) throws Exception {
    final String query = a[0], out = a[3];
    final Pace pace = new Pace(a[1]);
    final boolean join = "nbq8".equals(query);
    final long begin = Long.parseLong(a[2]), each = 1L << 42;
    StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
    DataStream<Tuple2<Long, Long>> records = "files".equals(query) ? files(env, a[4]) : env.fromSource(
        new DataGeneratorSource<>(new Paced(query, pace, begin, each), each * SPLITS, Types.TUPLE(Types.LONG, Types.LONG)),
        WatermarkStrategy.<Tuple2<Long, Long>>forMonotonousTimestamps().withTimestampAssigner((r, t) -> r.f1), "paced").uid("paced")
      .filter(r -> r.f0 >= 0);
    var keyed = records.keyBy(r -> join ? r.f0 >> 1 : r.f0, Types.LONG);
    TypeInformation<Tuple4<Long, Long, Long, Long>> rows = Types.TUPLE(Types.LONG, Types.LONG, Types.LONG, Types.LONG);
    ("files".equals(query) ? keyed.process(new Changes()) : join ? keyed.process(new Join()) : "q11".equals(query) ? keyed.process(new Sessions())
        : keyed.process("ysb".equals(query) ? new Sliding(10_000, 10_000) : new Sliding(60_000, 10_000)))
      .returns(rows).uid("windows").name("windows").sinkTo(new Ages(out, 250)).uid("sink").name("sink");
    env.execute("latency");
  }

  /** Lines "key,created" of files that are added to a directory, which is looked at as often as Ferry begins epochs. */
  static DataStream<Tuple2<Long, Long>> files(StreamExecutionEnvironment env, String directory) {
    var source = FileSource.forRecordStreamFormat(new TextLineInputFormat(), new Path(directory))
        .monitorContinuously(Duration.ofMillis(10)).build();
    return env.fromSource(source, WatermarkStrategy.noWatermarks(), "files").uid("files").map(line -> {
      int comma = line.indexOf(',');
      return Tuple2.of(Long.parseLong(line.substring(0, comma)), Long.parseLong(line.substring(comma + 1)));
    }).returns(Types.TUPLE(Types.LONG, Types.LONG));
  }

  /** When arrivals are due, in steps of one rate each. */
  static class Pace implements java.io.Serializable {
    final double[] times, arrivals, rates;
    Pace(String steps) {
      String[] each = (steps.contains(":") ? steps : "1:" + steps).split(",");
      times = new double[each.length + 1]; arrivals = new double[each.length + 1]; rates = new double[each.length];
      for (int i = 0; i < each.length; i++) {
        double seconds = Double.parseDouble(each[i].split(":")[0]);
        rates[i] = Double.parseDouble(each[i].split(":")[1]);
        times[i + 1] = times[i] + seconds; arrivals[i + 1] = arrivals[i] + seconds * rates[i];
      }
    }
    double seconds(long n) {
      int last = rates.length, i = 0;
      double rounds = Math.floor(n / arrivals[last]), rest = n - rounds * arrivals[last];
      while (i < last - 1 && arrivals[i + 1] <= rest) i++;
      return rounds * times[last] + times[i] + (rest - arrivals[i]) / rates[i];
    }
  }

  /** Number of an arrival -> (key, or less than 0 for what is none of the query's; created, in milliseconds), when it is due. */
  static class Paced implements GeneratorFunction<Long, Tuple2<Long, Long>> {
    final String query; final Pace pace; final long begin, each;
    Paced(String query, Pace pace, long begin, long each) {
      this.query = query; this.pace = pace; this.begin = begin; this.each = each;
    }
    public Tuple2<Long, Long> map(Long i) throws Exception {
      long n = i % each * SPLITS + i / each, micros = (long) (pace.seconds(n) * 1e6), created = begin + micros / 1000;
      long wait = begin * 1000 + micros - System.currentTimeMillis() * 1000;
      if (wait > 0) Thread.sleep((wait + 999) / 1000);
      return Tuple2.of(key(n), created);
    }
    /** As NEXMark's and YSB's generators draw them: of 50 events 46 are bids, half of them on the hot auction. */
    long key(long n) {
      long draw = mix(n), other = mix(draw) >>> 1;
      if ("ysb".equals(query)) return draw % 3 == 0 ? other % 100 : -1;
      if ("nbq8".equals(query)) return n % 50 > 3 ? -1 : side(n / 50, n % 50 > 0 ? 1 : 0, draw, other);
      if (n % 50 < 4) return -1;
      long newest = n / 50 * ("q11".equals(query) ? 1 : 3), hot = "q11".equals(query) ? 4 : 2;
      if ((draw >>> 1) % hot != 0) return newest / 100 * 100;
      return Math.max(newest - other % ("q11".equals(query) ? 1000 : 100), 0);
    }
    /** A person, or who sells an auction, three quarters of which are of a hot seller: twice the number, and 1 for an auction. */
    static long side(long newest, int auction, long draw, long other) {
      long who = auction == 0 ? newest : (draw >>> 1) % 4 != 0 ? newest / 100 * 100 : Math.max(newest - other % 1000, 0);
      return who * 2 + auction;
    }
    static long mix(long x) {
      x += 0x9E3779B97F4A7C15L; x = (x ^ x >>> 30) * 0xBF58476D1CE4E5B9L; x = (x ^ x >>> 27) * 0x94D049BB133111EBL; return x ^ x >>> 31;
    }
  }

  /** Counts, and passes on each change with when its record was created: (created, count, -, 0). */
  static class Changes extends KeyedProcessFunction<Long, Tuple2<Long, Long>, Tuple4<Long, Long, Long, Long>> {
    transient ValueState<Long> count;
    @Override public void open(OpenContext c) {
      count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
    }
    @Override public void processElement(Tuple2<Long, Long> r, Context c, Collector<Tuple4<Long, Long, Long, Long>> out) throws Exception {
      Long had = count.value(); long n = had == null ? 1 : had + 1;
      count.update(n);
      out.collect(Tuple4.of(r.f1, n, 0L, 0L));
    }
  }

  /** Counts by pane; a row for each window when it is over. Passes on when each record was created: (created, -, -, 0). */
  static class Sliding extends KeyedProcessFunction<Long, Tuple2<Long, Long>, Tuple4<Long, Long, Long, Long>> {
    final long size, slide; transient MapState<Long, Long> panes;
    Sliding(long size, long slide) { this.size = size; this.slide = slide; }
    @Override public void open(OpenContext c) {
      panes = getRuntimeContext().getMapState(new MapStateDescriptor<>("panes", Types.LONG, Types.LONG));
    }
    @Override public void processElement(Tuple2<Long, Long> r, Context c, Collector<Tuple4<Long, Long, Long, Long>> out) throws Exception {
      long pane = r.f1 - r.f1 % slide; Long had = panes.get(pane);
      panes.put(pane, had == null ? 1 : had + 1);
      if (had == null) c.timerService().registerEventTimeTimer(pane + slide - 1);
      out.collect(Tuple4.of(r.f1, 0L, 0L, 0L));
    }
    @Override public void onTimer(long t, OnTimerContext c, Collector<Tuple4<Long, Long, Long, Long>> out) throws Exception {
      long end = t + 1, num = 0; boolean more = false;
      for (var i = panes.iterator(); i.hasNext(); ) {
        var pane = i.next();
        if (pane.getKey() < end - size) { i.remove(); continue; }
        if (pane.getKey() < end) num += pane.getValue();
        more |= pane.getKey() >= end - size + slide;
      }
      if (num > 0) out.collect(Tuple4.of(c.getCurrentKey(), end - size, end, num));
      if (more) c.timerService().registerEventTimeTimer(t + slide);
    }
  }

  /** Keeps people and auctions of a key until their window of 12 h is over, and then puts out how many pairs they make. */
  static class Join extends KeyedProcessFunction<Long, Tuple2<Long, Long>, Tuple4<Long, Long, Long, Long>> {
    static final long SIZE = 12 * 3_600_000L;
    transient List<ListState<Long>> sides;
    @Override public void open(OpenContext c) {
      sides = List.of(side("people"), side("auctions"));
    }
    ListState<Long> side(String name) { return getRuntimeContext().getListState(new ListStateDescriptor<>(name, Types.LONG)); }
    @Override public void processElement(Tuple2<Long, Long> r, Context c, Collector<Tuple4<Long, Long, Long, Long>> out) throws Exception {
      sides.get((int) (r.f0 & 1)).add(r.f1);
      c.timerService().registerEventTimeTimer(r.f1 - r.f1 % SIZE + SIZE - 1);
      out.collect(Tuple4.of(r.f1, 0L, 0L, 0L));
    }
    @Override public void onTimer(long t, OnTimerContext c, Collector<Tuple4<Long, Long, Long, Long>> out) throws Exception {
      long pairs = 1;
      for (var side : sides) {
        List<Long> later = new ArrayList<>(); long mine = 0;
        for (long created : side.get()) if (created > t) later.add(created); else mine++;
        side.update(later); pairs *= mine;
      }
      if (pairs > 0) out.collect(Tuple4.of(c.getCurrentKey(), t + 1 - SIZE, t + 1, pairs));
    }
  }

  /** Counts by session. */
  static class Sessions extends KeyedProcessFunction<Long, Tuple2<Long, Long>, Tuple4<Long, Long, Long, Long>> {
    transient ValueState<long[]> session;
    @Override public void open(OpenContext c) {
      session = getRuntimeContext().getState(new ValueStateDescriptor<>("session", TypeInformation.of(long[].class)));
    }
    @Override public void processElement(Tuple2<Long, Long> r, Context c, Collector<Tuple4<Long, Long, Long, Long>> out) throws Exception {
      long[] s = session.value();
      if (s == null) { s = new long[] {r.f1, r.f1, 0}; c.timerService().registerEventTimeTimer(r.f1 + GAP - 1); }
      s[1] = r.f1; s[2]++; session.update(s);
      out.collect(Tuple4.of(r.f1, 0L, 0L, 0L));
    }
    @Override public void onTimer(long t, OnTimerContext c, Collector<Tuple4<Long, Long, Long, Long>> out) throws Exception {
      long[] s = session.value();
      if (s == null) return;
      if (s[1] + GAP - 1 > t) { c.timerService().registerEventTimeTimer(s[1] + GAP - 1); return; }
      out.collect(Tuple4.of(c.getCurrentKey(), s[0], s[1] + GAP, s[2])); session.clear();
    }
  }

  /** Lines "now rows age:count ...", milliseconds, at most one in `each`: how old records were that had come by then. A file for each writer and committer. */
  static class Ages implements Sink<Tuple4<Long, Long, Long, Long>>, SupportsCommitter<byte[]> {
    final String dir; final long each; Ages(String dir, long each) { this.dir = dir; this.each = each; }
    @Override public CommittingSinkWriter<Tuple4<Long, Long, Long, Long>, byte[]> createWriter(WriterInitContext c) throws IOException {
      return new Writer(new FileOutputStream(name(c.getTaskInfo().getIndexOfThisSubtask(), "at-once"), true), each);
    }
    @Override public Committer<byte[]> createCommitter(CommitterInitContext c) throws IOException {
      return new Done(new FileOutputStream(name(c.getTaskInfo().getIndexOfThisSubtask(), "committed"), true));
    }
    @Override public SimpleVersionedSerializer<byte[]> getCommittableSerializer() { return new Bytes(); }
    String name(int subtask, String what) { return dir + "/" + System.currentTimeMillis() + "-" + subtask + "-" + what + ".txt"; }
  }

  /** Notes how old each record is at once, in milliseconds, and what the next checkpoint will make durable. */
  static class Writer implements CommittingSinkWriter<Tuple4<Long, Long, Long, Long>, byte[]> {
    final FileOutputStream file; final Map<Long, Long> created = new HashMap<>(), ages = new HashMap<>(); final long each; long last, rows;
    Writer(FileOutputStream file, long each) { this.file = file; this.each = each; }
    @Override public void write(Tuple4<Long, Long, Long, Long> row, Context c) throws IOException {
      if (row.f3 > 0) { rows++; return; }
      created.merge(row.f0, 1L, Long::sum);
      long now = System.currentTimeMillis();
      ages.merge(Math.max(now - row.f0, 0), 1L, Long::sum);
      if (now - last >= each) { put(now); last = now; }
    }
    void put(long now) throws IOException { line(file, now, rows, ages); ages.clear(); rows = 0; }
    @Override public void flush(boolean end) throws IOException { put(System.currentTimeMillis()); }
    @Override public Collection<byte[]> prepareCommit() {
      ByteBuffer made = ByteBuffer.allocate(8 + 16 * created.size()).putLong(java.util.concurrent.ThreadLocalRandom.current().nextLong(Long.MAX_VALUE));
      created.forEach((ms, count) -> made.putLong(ms).putLong(count));
      created.clear();
      return Collections.singletonList(made.array());
    }
    @Override public void close() throws IOException { file.close(); }
  }

  /** What a checkpoint has made durable: output that is exactly once becomes visible here. In place of rows a line has what was
   * committed by a number of its own: Flink may commit it again after a restart. */
  static class Done implements Committer<byte[]> {
    final FileOutputStream file;
    Done(FileOutputStream file) { this.file = file; }
    @Override public void commit(Collection<CommitRequest<byte[]>> all) throws IOException {
      long now = System.currentTimeMillis();
      for (var one : all) {
        ByteBuffer b = ByteBuffer.wrap(one.getCommittable());
        long id = b.getLong(); Map<Long, Long> ages = new HashMap<>();
        while (b.hasRemaining()) { long ms = b.getLong(); ages.merge(Math.max(now - ms, 0), b.getLong(), Long::sum); }
        line(file, now, id, ages);
      }
    }
    @Override public void close() throws Exception { file.close(); }
  }

  static void line(FileOutputStream file, long now, long rows, Map<Long, Long> ages) throws IOException {
    StringBuilder made = new StringBuilder().append(now).append(' ').append(rows);
    ages.forEach((ms, count) -> made.append(' ').append(ms).append(':').append(count));
    file.write(made.append('\n').toString().getBytes());
  }

  static class Bytes implements SimpleVersionedSerializer<byte[]> {
    @Override public int getVersion() { return 1; }
    @Override public byte[] serialize(byte[] b) { return b; }
    @Override public byte[] deserialize(int version, byte[] b) { return b; }
  }
}
