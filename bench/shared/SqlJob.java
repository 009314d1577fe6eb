import org.apache.flink.api.common.JobExecutionResult;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.FileSourceSplit;
import org.apache.flink.connector.file.src.assigners.FileSplitAssigner;
import org.apache.flink.core.fs.Path;
import org.apache.flink.formats.parquet.ParquetColumnarRowInputFormat;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.utils.LogicalTypeParser;
import org.apache.flink.table.types.utils.TypeConversions;
import java.io.FileInputStream;
import java.io.InputStream;
import java.util.*;

/**
 * Peer job: queries of SQL over a folder of Parquet files, one after the other in this JVM, each in a MiniCluster of its own.
 * Argument: a file of properties. `folder`, `columns`, and for event time `time` and `watermark`: the table `input`; `view`: a
 * query over it, which is the view `events`; for each number from 0 `rows-NUMBER`, a query over that, and `sink-NUMBER`, the
 * table that gets its rows; names with a dot: settings of Flink.
 * After each query it prints a line of JSON: when the job began and ended, in seconds since 1970.
 */
public class SqlJob {
  public static void main(String[] a) throws Exception {
    Properties job = new Properties();
    try (InputStream file = new FileInputStream(a[0])) { job.load(file); }
    Configuration settings = new Configuration();
    for (String name : job.stringPropertyNames()) if (name.contains(".")) settings.setString(name, job.getProperty(name));
    for (int i = 0; job.containsKey("rows-" + i); i++) {
      StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment(settings);
      StreamTableEnvironment tables = StreamTableEnvironment.create(environment);
      tables.createTemporaryView("input", environment.fromSource(files(job), WatermarkStrategy.noWatermarks(), "files"), columns(job));
      tables.executeSql("CREATE TEMPORARY VIEW events AS " + job.getProperty("view"));
      tables.executeSql("CREATE TEMPORARY TABLE sink " + job.getProperty("sink-" + i));
      String insert = "INSERT INTO sink " + job.getProperty("rows-" + i);
      System.err.println(tables.explainSql(insert));
      JobExecutionResult done = tables.executeSql(insert).getJobClient().get().getJobExecutionResult().get();
      double end = System.currentTimeMillis() / 1000.0;
      System.out.printf(Locale.ROOT, "{\"begin\": %.3f, \"end\": %.3f}%n", end - done.getNetRuntime() / 1000.0, end);
    }
    System.exit(0);
  }

  /** Not the connector of SQL: it gives the files to its readers in any order, and then records are late. */
  static FileSource<RowData> files(Properties job) {
    ParquetColumnarRowInputFormat<FileSourceSplit> format = new ParquetColumnarRowInputFormat<>(
        new org.apache.hadoop.conf.Configuration(), row(job), InternalTypeInfo.of(row(job)), 2048, true, true);
    return FileSource.forBulkFileFormat(format, new Path(job.getProperty("folder"))).setSplitAssigner(InOrder::new).build();
  }

  static Schema columns(Properties job) {
    Schema.Builder made = Schema.newBuilder().fromRowDataType(TypeConversions.fromLogicalToDataType(row(job)));
    if (job.containsKey("time")) made.columnByExpression("t", job.getProperty("time")).watermark("t", job.getProperty("watermark"));
    return made.build();
  }

  static RowType row(Properties job) {
    return (RowType) LogicalTypeParser.parse("ROW<" + job.getProperty("columns") + ">", SqlJob.class.getClassLoader());
  }

  /** Gives files to readers in the order of their names. */
  static class InOrder implements FileSplitAssigner {
    private final PriorityQueue<FileSourceSplit> left = new PriorityQueue<>(
        Comparator.comparing((FileSourceSplit split) -> split.path().getName()).thenComparing(FileSourceSplit::offset));
    InOrder(Collection<FileSourceSplit> splits) { left.addAll(splits); }
    @Override public Optional<FileSourceSplit> getNext(String host) { return Optional.ofNullable(left.poll()); }
    @Override public void addSplits(Collection<FileSourceSplit> splits) { left.addAll(splits); }
    @Override public Collection<FileSourceSplit> remainingSplits() { return left; }
  }
}
