"""Every limit of the system, in one place.

A limit is part of the interface: what exceeds one is refused with a typed error before memory is taken for it.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Record batch
MAX_ENTRY_BYTES: Final = 16 * MIB
MAX_BATCH_BYTES: Final = 32 * MIB
MAX_BATCH_ENTRIES: Final = 1 << 20
MAX_BATCH_HEADER_BYTES: Final = 4 * KIB

# Log stream storage
SEGMENT_BYTES: Final = 64 * MIB
MAX_SEGMENT_BYTES: Final = 1 << 31
SEGMENT_RECORDS: Final = 32768
WRITE_GROUP_BYTES: Final = 8 * MIB
RESIDENT_SEGMENT_INDEXES: Final = 64
"""Of one log stream, whose files are open too,"""
OPEN_SEGMENTS: Final = 65536
"""and of all of a process, or a quarter of the files that it may have open."""
DELETIONS_AT_ONCE: Final = 8
"""Segments that a storage node deletes of a log stream with each look at the time. One of 64 MiB takes 14 ms."""
READ_CHUNK_BYTES: Final = 1 * MIB
SCAN_REPLY_BYTES: Final = 4 * MIB

# Log stream executor
MAX_UNCOMMITTED_BYTES: Final = 64 * MIB
MAX_UNCOMMITTED_BATCHES: Final = 8192
REPLICATE_BYTES: Final = 1 * MIB
"""Of batches in one message to a backup; a larger batch goes alone."""
REPLICATE_BATCHES: Final = 1024
COPY_PART_BYTES: Final = 4 * MIB
"""Of batches in one message to a replica that copies; a larger batch goes alone."""
COPY_PART_BATCHES: Final = 512
COPY_AHEAD_BYTES: Final = 16 * MIB
"""Copied and not yet durable; beyond it nothing more is asked for."""
COPY_BASE_BYTES: Final = 16 * MIB
"""What a replica that begins in the middle of a log is told of what came before."""
MAX_WAITING_READS: Final = 4096
MAX_READS_UNDER_WAY: Final = 64
FINGERPRINT_BYTES: Final = 8 * MIB
"""Of batches that one fingerprint covers,"""
FINGERPRINT_COMMITS: Final = 16384
"""and of commit contexts."""
MAX_FINGERPRINTS: Final = 16
"""That wait for a node's one thread for them."""

# Client
MAX_QUEUED_APPENDS: Final = 8192
"""Of one writer, behind those in flight."""
CLIENT_APPENDS_IN_FLIGHT: Final = 8192
CLIENT_BYTES_IN_FLIGHT: Final = 32 * MIB
"""Of one client's appends; beyond either of them an append waits for room."""
CLIENT_SCAN_BYTES: Final = 2 * MIB
"""What a scan or a subscription asks a replica for at a time: it fits into the sockets' buffers, so the replica has
sent the next by the time the client has dealt with this one."""
CLIENT_READ_AHEAD_BYTES: Final = 8 * MIB
"""Of a scan or a subscription, read and not yet taken; beyond it nothing more is asked for."""
CLIENT_OPERATIONS: Final = 65536
"""Of one client: reads, scans, subscriptions and appenders at once."""

# Exactly once (rule 18)
DEDUP_SEQUENCES_PER_WRITER: Final = 512
"""Also the most a writer may have in flight on one log stream: every batch in flight stays decidable."""
DEDUP_SEQUENCES: Final = 65536
"""Over all writers of a log stream; beyond it the writers silent for longest, by log position, are forgotten."""

# Sequencer ordering
STRIPE_BLOCK: Final = 4096
"""Consecutive positions that one log stream holds before the next one's turn comes, unless a topic says otherwise."""
MAX_STRIPE_BLOCK: Final = MAX_BATCH_ENTRIES
MAX_STRIPES: Final = 256
"""Of one projection: how often the log streams of a topic may change before what was striped first is trimmed."""
MAX_SEQUENCERS: Final = 64
MAX_GRANTS: Final = 4096
"""Batches that one request asks positions for."""
MAX_WAITING_GRANTS: Final = 65536
"""Batches that wait for positions, of one sequencer, while it asks for the projection of their epoch."""
CHAIN_WRITE_BYTES: Final = 1 * MIB
"""Of batches in one message to a replica of a chain; a larger batch goes alone."""
CHAIN_WRITE_BATCHES: Final = 1024
CHAIN_DIGEST_LINES: Final = 16384
"""Of a digest that tells runs of positions,"""
CHAIN_DIGEST_BATCHES: Final = 4096
"""and of one that tells batches: no more than some milliseconds are spent on it at a time."""
FILL_AFTER_SECONDS: Final = 1.0
"""So long a reader sees a position unwritten before it fills it, unless its application says otherwise (S5)."""
MAX_EPOCH: Final = 1 << 62
"""Epochs count up by one: who names a greater one is mistaken, and nobody could go beyond it."""
MAX_EPOCH_LEAP: Final = 1 << 32
"""So far an epoch may be beyond what a replica knows of: more than a cluster gets to while a node is away, and far from
the end."""
NODE_LEASE_SECONDS: Final = 5.0
"""So long after the last report that the metadata repository answered was sent, a storage node serves chains (S10)."""

# Metadata repository
MAX_NODES: Final = 1024
MAX_NODES_IN_ONE_PROCESS: Final = 64
"""They share one event loop: so many have started after some seconds, many more not before a start is given up."""
MAX_TOPICS: Final = 4096
MAX_LOG_STREAMS: Final = 16384
MAX_REPLICAS: Final = 7
MAX_LOG_STREAMS_PER_NODE: Final = 1024
MAX_CUTS_HELD: Final = 4096
"""Of one log stream, while a replica does not have them on disk; beyond it the log stream gets no more cuts."""
MAX_CUTS_HELD_IN_ALL: Final = 65536
"""Over all log streams: they are part of the metadata's snapshot, which is one value of the store."""
MAX_TOPIC_NAME: Final = 255
MAX_FIRST_GLSN: Final = 1 << 62
"""Where a topic may begin at most: there is room for as many positions behind it."""
MAX_ADDRESS: Final = 300
MAX_ARCHIVE_URI: Final = 2048
MAX_VOLUMES: Final = 256
"""Of one storage node."""
MAX_VOLUME_PATH: Final = 4096
MAX_PENDING_DECISIONS: Final = 1024
MAX_CUTS_PER_REPLY: Final = 1024
METADATA_VALUE_BYTES: Final = 8 * MIB
METADATA_TXN_OPERATIONS: Final = 128
METADATA_STORE_BYTES: Final = 1024 * MIB
MAX_LEASE_SECONDS: Final = 86400
SURVEY_COMMITS: Final = 1024
"""Of each replica that a survey tells, the last ones: more than one that fell behind lacks."""

# Metadata stores of our own
MAX_STAGED_REQUESTS: Final = 4096
JOURNAL_COMPACT_BYTES: Final = 16 * MIB
WATCH_HISTORY_REVISIONS: Final = 4096
WATCH_HISTORY_BYTES: Final = 64 * MIB

# Metadata in etcd
MAX_ETCD_ENDPOINTS: Final = 16
MAX_ETCD_PREFIX: Final = 255
ETCD_SECONDS: Final = 1.0
"""What a request waits for an answer. Then another member is asked, and of a write the outcome is unknown."""
ETCD_CONNECT_SECONDS: Final = 0.5
ETCD_LOGIN_SECONDS: Final = 5.0
"""etcd makes passwords costly to try, and a member that was just started has much else to do."""
ETCD_LOOK_SECONDS: Final = 2.0
"""How often a member is asked how it is: so long a watch may go on waiting for one that is dead."""
ETCD_WATCH_SECONDS: Final = 30.0
"""A watch that is told nothing for so long is asked for anew: a network may have forgotten its connection."""
ETCD_VALUE_BYTES: Final = 1 * MIB
"""etcd takes requests of 1.5 MiB in all, unless it is told otherwise."""
ETCD_PAGE_KEYS: Final = 512
"""Read at a time of what is under a prefix."""
ETCD_REPLY_BYTES: Final = 64 * MIB
ETCD_REQUESTS: Final = 256
"""Of one store, not yet answered."""
ETCD_READ_SECONDS: Final = 30.0
"""For all pages of a read."""

# Connections
HELLO_BYTES: Final = 1 * KIB
"""The most a frame may hold before its sender has proven that it belongs to the cluster."""
HELLO_SECONDS: Final = 5.0
MAX_HELLOS: Final = 128
"""Connections of one server that have not finished their hello; a further one takes the place of the oldest."""
MAX_CONNECTIONS: Final = 1024
"""Connections of one server,"""
RESERVED_CONNECTIONS: Final = 256
"""and how many of them no client gets: clients in crowds must not keep out daemons that come back. Half of these are
for hellos that are under way."""
MAX_CONTROL_BYTES: Final = 8 * MIB
MAX_PING_BYTES: Final = 4 * KIB
MAX_FINDINGS: Final = 1000
"""Of one diagnosis; of more the worst."""
MAX_DETAIL: Final = 500
"""Characters of what a control message says of an error."""
RECEIVE_BUFFER_BYTES: Final = 256 * KIB
RECEIVE_BYTES_IN_ALL: Final = 128 * MIB
"""Of frames larger than the receive buffer that are being received by one process."""
CONNECTION_BUFFER_HIGH: Final = 8 * MIB
"""Queued towards a peer: beyond it a server reads no more requests of that peer until a quarter of it is left."""
CONNECTION_BUFFER_MAX: Final = 64 * MIB
"""Queued towards a peer: beyond it what is sent is dropped."""
STALL_SECONDS: Final = 30.0
STALL_BYTES: Final = 1 * MIB
"""How much a peer has to send of a frame, or to take of what is queued for it, in that time."""
HURRY_SECONDS: Final = 2.0
HURRY_BYTES: Final = 2 * MIB
"""The same of a frame larger than the receive buffer, while others wait to send one."""
MIN_SECRET_BYTES: Final = 32
MAX_SECRETS: Final = 8
"""That a secret file may hold at once."""

# Daemons
DESCRIPTORS: Final = 131072
"""Files and connections that a process asks to be allowed to have open: more than all other limits let it have."""
STOP_SECONDS: Final = 10
"""What a daemon that ends because of an error may take to close what it has open."""
MAX_LOGGED: Final = 1000
"""Characters of one text in a log line: a peer may have sent it, and the rest of it should fill no disk."""
METRICS_SECONDS: Final = 1.0
"""One rendering of the metrics serves everybody who asks within this time."""
HTTP_HEAD_BYTES: Final = 8 * KIB
HTTP_SECONDS: Final = 5.0
"""For one request from its first byte to the last of the reply."""
HTTP_CONNECTIONS: Final = 32
"""A further one takes the place of the oldest."""

REOPEN_SECONDS: Final = 1.0
"""A replica whose disk fails is not opened anew more often than this."""

# Transactions
TRANSACTION_SECONDS: Final = 60.0
"""After so long a transaction expires, unless it is begun with another time."""
MAX_TRANSACTION_SECONDS: Final = 24 * 3600.0
MAX_TRANSACTION_BYTES: Final = 64 * 1024 * MIB
"""Of one part of a transaction."""
MAX_TRANSACTION_PARTS: Final = 65_536
MAX_TRANSACTION_NAME: Final = 200
"""Characters; of the token of an attempt, too."""
MAX_OPEN_TRANSACTIONS: Final = 1000
"""Of one topic."""
MAX_TRANSACTION_NAMES: Final = 10_000
"""Of one topic: names whose last committed number is kept."""
VERDICTS_LOOK: Final = 8192
"""So many batches a replica passes over in one read for verdicts; it need not read those of several entries."""
REMEMBERED_FATES: Final = 65_536
"""Verdicts that one reader keeps at hand, and parts of transactions that they name; others are looked for again."""
REMEMBERED_ATTEMPTS: Final = 16
"""Of one name: earlier ones that are known to have been fenced."""
REMEMBERED_NAMES: Final = 100
"""Of one topic: names without a committed number, after their transactions have ended."""
MAX_TRANSACTION_TASKS: Final = 256
"""Of one client: what it does in the background about transactions that have ended; the rest is left to others."""
MAX_TRANSACTION_NUMBER: Final = (1 << 63) - 1
REGISTER_BYTES: Final = 640 * KIB
"""What is kept of the transactions of all topics: it is part of the metadata's snapshot, one value of the store."""
REGISTER_RESERVE: Final = 128 * KIB
"""Of that, for names that are there already: what goes on does not end because others have begun too much."""
REGISTER_BYTES_OF_ONE: Final = 256
"""At most, of a transaction and its name, without the texts."""

# Spark
SPARK_BATCH_ROWS: Final = 32_000
SPARK_BATCH_BYTES: Final = 4 * MIB
"""Of one Arrow batch for Spark: full with either, and at most half as much again. A batch of the log is not taken apart
for it."""
SPARK_LARGE_BYTES: Final = 512 * KIB
"""A batch of the log that is as large is one for Spark by itself: its payloads need not be copied."""
SPARK_PARTITION_ROWS: Final = 2_000_000
SPARK_PARTITION_BYTES: Final = 128 * MIB
"""About what one task reads, unless a query says otherwise; of files Spark's tasks read as much."""
SPARK_PARTITIONS: Final = 4
SPARK_SHARE_BYTES: Final = 16 * MIB
"""So many tasks share what fewer could read, if each of them then has as many bytes."""
SPARK_SINK_BATCH_BYTES: Final = 1 * MIB
"""Of rows that a task writes as one batch of the log; a larger row goes alone."""
SPARK_SINK_WINDOW: Final = 32
"""Such batches of one task that are under way."""
SPARK_SINK_SECONDS: Final = 600
"""After so long the transaction of a query that writes expires, unless it says otherwise."""
