"""The description of the throughput benchmark: the first record of its results."""

METHOD = """\
Input: Parquet files written once by the workload's generator (rate {rate:,.0f} events/s of event time; YSB as in \
Slash: two windows in the input; q7: twenty), with the columns that the query reads, for both systems, {cores} cores \
each, run one after the other in turns (Ferry, Spark, Ferry, Spark, ...) with fresh processes. Spark: local mode, no \
chmod processes for checkpoint files, RocksDB state store with changelog checkpointing and without row counting, \
{cores} shuffle partitions, trigger 'as soon as possible', with maxFilesPerTrigger for the same batch and for a \
{larger}x larger one, append mode to Parquet. Ferry: jobs of ferry_workloads, 64 virtual nodes on 2 workers, \
{replicas} replicas (Spark's state has none in memory), {mode} epochs, Parquet sink; in the cases 'replicas' 3 \
workers. For queries with two streams (q3, nb11) a batch is one file of each stream, else a batch is several files. \
q11: session_window; cm: groupBy(window, job).agg; q3: inner join of streams without a watermark; q7: the windowed \
maximum joined with the bids, two stateful operators in append mode, and both systems first drop bids that another bid \
of the same window and Arrow batch exceeds (Spark in mapInArrow); nb11: Spark cannot join sessions, so Ferry runs \
alone, without comparison of results and without ratio. ro and hash_count: groupBy(key).count() in update mode to the \
noop sink, and the last count of every key from Spark's state store after the end; Ferry writes the counts when the \
input has ended; neither is in the measured time. ro: 10,000,000 keys, uniform; hash_count: a sixth of the input loads \
each key once. records/s: input records between the end of the batch that passes a third of the input (warm-up) and \
the end of the last full one, divided by that time. Results of all systems are compared as multisets with the results \
of the first, over the windows that both closed; a difference ends the run. CPU: user and system seconds of all \
processes of the run in that time, in all and by process; "cpu ratio": of two runs that followed each other. Earlier: \
Ferry of another checkout in the same environment; its first run compiles its kernels. UpPar (queries that are \
one aggregate by key): the same pipeline, job and epochs in Ferry, but the aggregates are made by a process: tasks \
send it the records, key and needed columns, by virtual node, and the leader of the key sorts and aggregates them, in \
arrays, into state by key; so its leaders also work differently from Ferry's, whose kernels merge partial aggregates \
into hash tables. One thread (the same queries): one process on one core, pyarrow without threads, compiled loops over \
one hash table per pane, no replicas and no durable state; after each batch it emits the windows that the watermark \
has passed. Flink (nbq5, ysb, ysb-100, cm, hash_count): SQL of Flink {flink} in one JVM (-Xmx3g, ParallelGC) with \
{cores} slots, state on the heap or in RocksDB, a checkpoint every 10 s, two-phase aggregation, mini-batches of 10 s \
or 1,000,000 rows, object reuse, no replicas. Readers get the files in the order of their names, which the connector \
of SQL does not do: records would be late. Flink has no batches, so its runs beside both batch sizes are alike. The \
query runs {runs} times in the JVM and the last run is measured as a whole: all records over the time of the job, with \
its start, its last checkpoint and all windows, which the end of the input closes; of the other systems a part of one \
run is measured. hash_count: to the blackhole sink, with the load of the keys; the last count of every key is of one \
more run, which is not measured. Spark, memory: Spark with its HDFS-backed state store, which is on the heap, and \
without adaptive execution. "best of each" and "Spark's best": Spark with the better of both stores, if both ran. \
Skew: keys by Zipf over the domain of the query, exponents {skew}."""
