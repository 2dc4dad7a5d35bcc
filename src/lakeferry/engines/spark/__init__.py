"""The engine on Spark, for everything that touches much data.

``spark_engine.py`` implements the port. ``tasks/`` is what executors run: plain functions that
tests call without a JVM. Nothing outside this package and :mod:`lakeferry.spark` imports pyspark.
"""
