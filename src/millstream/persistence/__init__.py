"""What outlives the process: snapshots in Redis's RDB format, as bytes in and bytes out.

    crc64, lzf, listpack, ziplist    the parts other formats are made of; they know no Redis value
    rdb_options, rdb_codec           which forms there are; Reader and Writer: lengths, strings, numbers
    rdb_nodes, rdb_groups            a stream's entries; its groups
    rdb_stream, rdb_values           streams; strings, lists, sets, hashes, sorted sets
    rdb_payload, rdb_file            one value, one DUMP payload; a whole file
    rdb                              what others need of all these
    commands                         DUMP and RESTORE
"""
