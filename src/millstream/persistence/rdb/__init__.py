"""RDB, the format of Redis's snapshots and of DUMP: all that other modules need of it.

    dump_value, load_value            a value with its type byte before it
    dump_payload, restore_payload     a value as DUMP and RESTORE carry it
    write_rdb, read_rdb               whole files

Bytes in, bytes out: nothing here opens a file or asks for the time.
"""

from __future__ import annotations

from millstream.persistence.rdb.codec import Reader
from millstream.persistence.rdb.file import Loaded, read_rdb, write_rdb
from millstream.persistence.rdb.payload import dump_payload, dump_value, load_value, restore_payload
from millstream.persistence.rdb.versions import RELEASED_TO, STREAM_TYPES, VERSION, VERSION_OF

__all__ = [
    "RELEASED_TO",
    "STREAM_TYPES",
    "VERSION",
    "VERSION_OF",
    "Loaded",
    "Reader",
    "dump_payload",
    "dump_value",
    "load_value",
    "read_rdb",
    "restore_payload",
    "write_rdb",
]
