"""Moving keys from one server to another: whole streams with their groups, pending entries and released entries.

    Place ── scan ──▶ keys ── Copier ──▶ Place        place: one server, a cluster, or a broker in this process
                        │        └── whole, as a payload that the target takes; or by commands, entry by entry
                        └── verify: both ends are read again and compared

`moving` puts the parts together, `resume` keeps what is done in a file, so that a broken move goes on where it was.
"""

from millstream.migration.moving import Move, Options, Report
from millstream.migration.place import Endpoint

__all__ = ["Endpoint", "Move", "Options", "Report"]
