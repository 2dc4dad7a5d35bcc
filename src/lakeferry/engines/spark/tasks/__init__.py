"""What Spark's executors run: plain functions over values and Arrow batches.

Nothing here imports pyspark: these functions run in executors, and in tests
without a JVM. :mod:`lakeferry.engines.spark.replay_on_spark` joins them to DataFrames.
"""
