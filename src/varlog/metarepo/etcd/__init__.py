"""The metadata store on etcd: `store` is its outside, `gateway` what is said, `endpoints` to whom and for how long.

`address` and `versions` need nothing but Python; the others need the extra `etcd`.
"""
