"""What Spark's tasks do, as plain functions over values and Arrow batches.

Nothing here imports pyspark: these functions run in executors, and in tests
without a JVM. :mod:`lakeferry.engines.spark_replay` joins them to DataFrames.
"""
