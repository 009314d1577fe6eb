import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * The latency benchmark's counts for Flink: a topic of Kafka -> keyBy -> count, with each change -> another topic.
 * Arguments: SERVERS IN OUT GUARANTEE
 */
public class CountsJob {
  public static void main(String[] a) throws Exception {
    StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
    KafkaSource<String> in = KafkaSource.<String>builder().setBootstrapServers(a[0]).setTopics(a[1]).setGroupId("flink")
        .setStartingOffsets(OffsetsInitializer.earliest()).setValueOnlyDeserializer(new SimpleStringSchema()).build();
    var builder = KafkaSink.<String>builder().setBootstrapServers(a[0])
        .setDeliveryGuarantee(DeliveryGuarantee.valueOf(a[3])).setTransactionalIdPrefix("flink-counts")
        .setProperty("transaction.timeout.ms", "600000").setProperty("linger.ms", "1")
        .setRecordSerializer(KafkaRecordSerializationSchema.builder().setTopic(a[2])
            .setValueSerializationSchema(new SimpleStringSchema()).build());
    env.fromSource(in, WatermarkStrategy.noWatermarks(), "keys").uid("keys")
        .map(value -> Long.parseLong(value.substring(value.indexOf(':') + 1, value.length() - 1))).returns(Types.LONG)
        .keyBy(key -> key, Types.LONG).process(new Count()).returns(Types.STRING).uid("counts")
        .sinkTo(builder.build()).uid("sink");
    env.execute("counts");
  }

  static class Count extends KeyedProcessFunction<Long, Long, String> {
    transient ValueState<Long> count;
    @Override public void open(OpenContext c) {
      count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
    }
    @Override public void processElement(Long key, Context c, Collector<String> out) throws Exception {
      Long had = count.value();
      long n = had == null ? 1 : had + 1;
      count.update(n);
      out.collect("{\"k\":" + key + ",\"n\":" + n + "}");
    }
  }
}
