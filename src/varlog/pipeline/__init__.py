"""The data pipeline's jobs: plain PySpark applications that put a topic away, bring it back, and prove it whole.

Each job is a module with a `main`, and runs as `varlog pipeline NAME` or by `spark-submit`.
"""
