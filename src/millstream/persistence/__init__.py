"""Durable state: an append-only log and snapshots, both in Redis's own formats.

The log, and the modules that maintain it:

    store ──▶ journal, background, ticker      state in a directory: its log, its rewrites and snapshots, a thread
    journal ──▶ manifest, aof, replay          which files; writing lines; loading them, by hot forms where it can
    background ──▶ freeze, dump, rewrite       a copy of all state; a file of it; its shortest list of commands
    scan, check                                reading a log with offsets; is it whole, and if not, what is left of it?
    files, host                                the only module that opens files; who runs the commands

RDB, as bytes in and bytes out:

    crc64, lzf, listpack, ziplist    the parts other formats are made of; they know no Redis value
    rdb_options, rdb_codec           which forms there are; Reader and Writer: lengths, strings, numbers
    rdb_nodes, rdb_groups            a stream's entries; its groups
    rdb_stream, rdb_values           streams; strings, lists, sets, hashes, sorted sets
    rdb_payload, rdb_file            one value, one DUMP payload; a whole file
    rdb                              what others need of all these
    commands                         DUMP and RESTORE
"""
