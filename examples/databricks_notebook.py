# Databricks notebook source
# MAGIC %md
# MAGIC # Move a Delta table with Lakeferry
# MAGIC
# MAGIC The table moves while writers use it. Afterwards its old path leads to the new place. This
# MAGIC needs a cluster with dedicated access mode, because Lakeferry reads the log itself and works
# MAGIC with the session's SparkContext. Lakeferry finds credentials for both places as cloud tools
# MAGIC do: in the cluster's environment or in its instance profile.

# COMMAND ----------

# MAGIC %pip install lakeferry

# COMMAND ----------

# MAGIC %restart_python

# COMMAND ----------

import lakeferry

dbutils.widgets.text("source", "s3://warehouse/old/orders", "Table to move")
dbutils.widgets.text("target", "s3://warehouse/new/orders", "New place, which is empty")
source = dbutils.widgets.get("source")
target = dbutils.widgets.get("target")

# COMMAND ----------

# MAGIC %md
# MAGIC ## What would happen
# MAGIC Nothing is changed. Each client that wrote lately is named, with what the move does to it.

# COMMAND ----------

table = lakeferry.Table(source)
for writer in table.recent_writers(target, mode="writer-only") or ():
    print(writer.message)
if not table.redirect_status().state.sends_readers_on:
    for step in table.redirect(target, mode="writer-only", dry_run=True):
        print(step)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The move
# MAGIC The cluster copies the files. Writers wait for the last few commits only. Run this cell again
# MAGIC if it was interrupted: it continues.

# COMMAND ----------

if table.redirect_status().state.value.endswith("IN-PROGRESS"):
    moved = table.redirect_resume(engine="spark")
else:
    moved = table.redirect(target, mode="writer-only", engine="spark")
print(f"{moved.source} is {moved.state.value}: {moved.target} since version {moved.version}")
print(f"{moved.files_copied} files copied, writers waited {moved.blocked_ms} ms")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Use the old path as before
# MAGIC From here on this session reads and writes the new place wherever the old path is named.

# COMMAND ----------

lakeferry.spark.install(spark)
rows = spark.read.format("delta").load(source).count()
print(f"{rows} rows at {lakeferry.resolve(source)}")

# COMMAND ----------

# MAGIC %md
# MAGIC To undo the move, with all that was written at the new place: `table.redirect_disable()`.
