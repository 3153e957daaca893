"""Every error text the engine answers with, in Redis's wording, each written once.

Texts that need no argument are constants; the others are functions that build the error. A constant is
raised through `fault()`, so that each raise has its own traceback.
"""

from __future__ import annotations

from typing import Final

from millstream.errors import CommandError


def fault(text: str | bytes) -> CommandError:
    """Return an error with this text; a text without a code word of its own gets ERR."""
    return CommandError(text)


WRONG_TYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"
SYNTAX: Final = "ERR syntax error"
NOT_AN_INTEGER: Final = "ERR value is not an integer or out of range"
NOT_A_FLOAT: Final = "ERR value is not a valid float"
OVERFLOW: Final = "ERR increment or decrement would overflow"
TIMEOUT_NOT_FLOAT: Final = "ERR timeout is not a float or out of range"
NUMKEYS_BELOW_ONE: Final = "ERR numkeys should be greater than 0"
COUNT_BELOW_ONE: Final = "ERR count should be greater than 0"
NOVALUES_ELSEWHERE: Final = "ERR NOVALUES option can only be used in HSCAN"
BAD_NUMKEYS: Final = "ERR invalid numkeys value"
BAD_PAIRS: Final = "ERR wrong number of key-value pairs"
ENX_WITHOUT_EXPIRY: Final = "ERR ENX flag requires an expiration"
BOUNDS_CROSSED: Final = "ERR LBOUND can't be greater than UBOUND"
INCREMENT_INFINITE: Final = "ERR BYFLOAT increment cannot be Infinity"
VALUE_INFINITE: Final = "ERR value cannot be Infinity"
APPLIED_OVERFLOW: Final = "ERR applied increment would overflow"
NO_SUCH_KEY: Final = "ERR no such key"
BAD_ID: Final = "ERR Invalid stream ID specified as stream command argument"
BAD_DB_INDEX: Final = "ERR DB index is out of range"

INVALID_START: Final = "ERR invalid start ID for the interval"
INVALID_END: Final = "ERR invalid end ID for the interval"

# XADD, XTRIM, XSETID
ID_ZERO: Final = "ERR The ID specified in XADD must be greater than 0-0"
ID_EXHAUSTED: Final = "ERR The stream has exhausted the last possible ID, unable to add more items"
ID_TOO_SMALL: Final = "ERR The ID specified in XADD is equal or smaller than the target stream top item"
ENTRY_TOO_LARGE: Final = "ERR Elements are too large to be stored"
TWO_TRIMS: Final = "ERR syntax error, MAXLEN and MINID options at the same time are not compatible"
NEGATIVE_MAXLEN: Final = "ERR The MAXLEN argument must be >= 0."
NEGATIVE_LIMIT: Final = "ERR The LIMIT argument must be >= 0."
LIMIT_WITHOUT_TRIM: Final = "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"
LIMIT_WITHOUT_APPROX: Final = "ERR syntax error, LIMIT cannot be used without the special ~ option"
XTRIM_WITHOUT_TRIM: Final = "ERR syntax error, XTRIM must be called with a trimming strategy"
NEGATIVE_ENTRIES_ADDED: Final = "ERR entries_added must be positive"
SETID_BELOW_GIVEN_DELETED: Final = "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id"
SETID_BELOW_DELETED: Final = "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id"
SETID_BELOW_TOP: Final = "ERR The ID specified in XSETID is smaller than the target stream top item"
SETID_BELOW_LENGTH: Final = "ERR The entries_added specified in XSETID is smaller than the target stream length"

# Idempotent production
IDMP_TWICE: Final = "ERR syntax error, IDMP/IDMPAUTO specified multiple times"
IDMPAUTO_EMPTY_PID: Final = "ERR syntax error, IDMPAUTO requires a non-empty producer ID"
IDMP_EMPTY_PID: Final = "ERR syntax error, IDMP requires a non-empty producer ID"
IDMP_EMPTY_IID: Final = "ERR syntax error, IDMP requires a non-empty idempotent ID"
IDMP_EXPLICIT_ID: Final = "ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs"
DURATION_TWICE: Final = "ERR IDMP-DURATION specified multiple times"
MAXSIZE_TWICE: Final = "ERR IDMP-MAXSIZE specified multiple times"
DURATION_RANGE: Final = "ERR IDMP-DURATION must be between 1 and 86400 seconds"
MAXSIZE_RANGE: Final = "ERR IDMP-MAXSIZE must be between 1 and 10000 entries"
NO_PARAMETER: Final = "ERR At least one parameter must be specified"
RECORD_EMPTY_PID: Final = "ERR producer ID must be non-empty"
RECORD_EMPTY_IID: Final = "ERR idempotent ID must be non-empty"
RECORD_NO_ENTRY: Final = "ERR No such message in stream"
RECORD_CONFLICT: Final = "ERR IID already exists for this producer with a different stream ID"

# XREAD, XREADGROUP
BLOCK_NOT_INTEGER: Final = "ERR timeout is not an integer or out of range"
BLOCK_NEGATIVE: Final = "ERR timeout is negative"
BLOCK_OUT_OF_RANGE: Final = "ERR timeout is out of range"
CLAIM_NOT_INTEGER: Final = "ERR min-idle-time is not an integer or out of range"
CLAIM_NEGATIVE: Final = "ERR min-idle-time must be a positive integer"
MAXCOUNT_BELOW_COUNT: Final = "ERR MAXCOUNT must be greater than or equal to COUNT"
MISSING_GROUP_OPTION: Final = "ERR Missing GROUP option for XREADGROUP"
NEW_ID_IN_XREAD: Final = (
    "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option."
)

# Groups
BUSY_GROUP: Final = "BUSYGROUP Consumer Group name already exists"
GROUP_NEEDS_KEY: Final = (
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the "
    "MKSTREAM option to create an empty stream automatically."
)
BAD_ENTRIESREAD: Final = "ERR value for ENTRIESREAD must be positive or -1"
XNACK_MODE: Final = "ERR mode must be SILENT, FAIL, or FATAL"
XNACK_NUMIDS: Final = "ERR numids must be a positive integer"
XNACK_NUMIDS_MISMATCH: Final = "ERR number of IDs doesn't match numids"
XNACK_RETRYCOUNT: Final = "ERR Invalid RETRYCOUNT value, must be >= 0"
XNACK_NO_IDS: Final = "ERR syntax error, expected IDS keyword"
NUMIDS: Final = "ERR Number of IDs must be a positive integer"
NUMIDS_MISMATCH: Final = "ERR The `numids` parameter must match the number of arguments"
AUTOCLAIM_COUNT: Final = "ERR COUNT must be > 0"

# Plain keys
DECREMENT_OVERFLOW: Final = "ERR decrement would overflow"
NOT_FINITE: Final = "ERR increment would produce NaN or Infinity"
BAD_DIGEST: Final = "ERR must be exactly 16 hexadecimal characters"
BAD_CONDITION: Final = "ERR Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE"
CONDITION_NEEDS_STRING: Final = "ERR Key should be of string type if conditions are specified"
NEGATIVE_OFFSET: Final = "ERR offset is out of range"
STRING_TOO_LONG: Final = "ERR string exceeds maximum allowed size (proto-max-bulk-len)"
EXPIRE_NX_WITH_OTHERS: Final = "ERR NX and XX, GT or LT options at the same time are not compatible"
EXPIRE_GT_WITH_LT: Final = "ERR GT and LT options at the same time are not compatible"
BAD_CURSOR: Final = "ERR invalid cursor"
SAME_OBJECT: Final = "ERR source and destination objects are the same"
BAD_FIRST_DB: Final = "ERR invalid first DB index"
BAD_SECOND_DB: Final = "ERR invalid second DB index"
NO_LFU: Final = (
    "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching "
    "between policies at runtime LRU and LFU data will take some time to adjust."
)
NOT_POSITIVE: Final = "ERR value is out of range, must be positive"
OUT_OF_RANGE: Final = "ERR value is out of range"
HASH_NOT_INTEGER: Final = "ERR hash value is not an integer"
BAD_SCORE_RANGE: Final = "ERR min or max is not a float"
BAD_LEX_RANGE: Final = "ERR min or max not valid string range item"
ZADD_NX_WITH_XX: Final = "ERR XX and NX options at the same time are not compatible"
ZADD_GT_LT_NX: Final = "ERR GT, LT, and/or NX options at the same time are not compatible"
ZADD_INCR_ONE: Final = "ERR INCR option supports a single increment-element pair"
BAD_BIT_OFFSET: Final = "ERR bit offset is not an integer or out of range"
BAD_BIT: Final = "ERR bit is not an integer or out of range"
BITPOS_BIT: Final = "ERR The bit argument must be 1 or 0."
BITOP_NOT_ONE: Final = "ERR BITOP NOT must be called with a single source key."
BAD_BITFIELD_TYPE: Final = (
    "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is."
)
BAD_OVERFLOW: Final = "ERR Invalid OVERFLOW type specified"
BITFIELD_RO_GET: Final = "ERR BITFIELD_RO only supports the GET subcommand"
SORT_NOT_FLOAT: Final = "ERR One or more scores can't be converted into double"
INDEX_OUT_OF_RANGE: Final = "ERR index out of range"
RANK_ZERO: Final = (
    "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to start "
    "from the end of the list"
)
NEGATIVE_COUNT: Final = "ERR COUNT can't be negative"
NEGATIVE_LPOS_MAXLEN: Final = "ERR MAXLEN can't be negative"
NEGATIVE_CARD_LIMIT: Final = "ERR LIMIT can't be negative"
TOO_MANY_NUMKEYS: Final = "ERR Number of keys can't be greater than number of args"
INCREMENT_NOT_FINITE: Final = "ERR value is NaN or Infinity"
HASH_NOT_FLOAT: Final = "ERR hash value is not a float"
WEIGHT_NOT_FLOAT: Final = "ERR weight value is not a float"
SCORE_IS_NAN: Final = "ERR resulting score is not a number (NaN)"
LIMIT_NEEDS_BY: Final = "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX"
WITHSCORES_BYLEX: Final = "ERR syntax error, WITHSCORES not supported in combination with BYLEX"


def _shown(word: bytes) -> bytes:
    """Return a word of the client as error texts repeat it: up to its first NUL, as a C string is."""
    return word.partition(b"\0")[0]


def wrong_arity(name: str) -> CommandError:
    """Too few or too many words for the command (`xgroup|create` for a subcommand)."""
    return fault(f"ERR wrong number of arguments for '{name}' command")


def unknown_command(name: bytes, arguments: list[bytes]) -> CommandError:
    """No such command; the first arguments are echoed until 128 bytes of them are collected."""
    text = b"ERR unknown command '" + _shown(name)[:128] + b"'"
    if arguments:
        echoed = b""
        for argument in arguments:
            if len(echoed) >= 128:
                break
            echoed += b"'" + _shown(argument)[: 128 - len(echoed)] + b"' "
        text += b", with args beginning with: " + echoed
    return fault(text)


def unknown_subcommand(container: str, name: bytes) -> CommandError:
    return fault(b"ERR unknown subcommand '" + _shown(name)[:128] + b"'. Try " + container.upper().encode() + b" HELP.")


def bad_subcommand_use(container: str, sent: bytes) -> CommandError:
    """Return the error for a known subcommand with options that it does not take."""
    return fault(
        b"ERR unknown subcommand or wrong number of arguments for '"
        + _shown(sent)
        + b"'. Try "
        + container.upper().encode()
        + b" HELP."
    )


def no_group(key: bytes, group: bytes) -> CommandError:
    """XPENDING, XCLAIM, XAUTOCLAIM, XNACK."""
    return fault(b"NOGROUP No such key '" + _shown(key) + b"' or consumer group '" + _shown(group) + b"'")


def no_group_to_read(key: bytes, group: bytes) -> CommandError:
    """XREADGROUP."""
    return fault(
        b"NOGROUP No such key '"
        + _shown(key)
        + b"' or consumer group '"
        + _shown(group)
        + b"' in XREADGROUP with GROUP option"
    )


def no_group_of_key(key: bytes, group: bytes) -> CommandError:
    """XGROUP and XINFO CONSUMERS."""
    return fault(b"NOGROUP No such consumer group '" + _shown(group) + b"' for key name '" + _shown(key) + b"'")


def only_for_xreadgroup(option: str) -> CommandError:
    return fault(f"ERR The {option} option is only supported by XREADGROUP. You called XREAD instead.")


def not_positive(option: str) -> CommandError:
    """MAXCOUNT, MAXSIZE."""
    return fault(f"ERR {option} must be a positive integer")


def unbalanced(command: str, kinds: str) -> CommandError:
    return fault(f"ERR Unbalanced '{command}' list of streams: for each stream key {kinds} must be specified.")


def meaningless_id(sign: str) -> CommandError:
    """`$` or `+` in XREADGROUP."""
    return fault(
        f"ERR The {sign} ID is meaningless in the context of XREADGROUP: you want to read the history of this "
        f"consumer by specifying a proper ID, or use the > ID to get new messages. The {sign} ID would just "
        "return an empty result set."
    )


def bad_claim_argument(what: str, command: str) -> CommandError:
    """Return the error for a bad duration; `what` is `min-idle-time argument`, `IDLE option argument` or similar."""
    return fault(f"ERR Invalid {what} for {command}")


def unrecognized_option(command: str, word: bytes) -> CommandError:
    """XCLAIM, XNACK."""
    return fault(f"ERR Unrecognized {command} option '".encode() + _shown(word) + b"'")


def bitop_needs_two(operation: bytes) -> CommandError:
    return fault(b"ERR BITOP " + operation + b" must be called with at least two source keys.")


def no_input_key(command: str) -> CommandError:
    """ZUNION, ZINTER, ZDIFF and their forms that store."""
    return fault(f"ERR at least 1 input key is needed for '{command}' command")


def invalid_expire(command: str) -> CommandError:
    return fault(f"ERR invalid expire time in '{command}' command")


def not_between(low: int, high: int) -> CommandError:
    """Return the error for an integer beyond what its argument can hold."""
    return fault(f"ERR value is out of range, value must between {low} and {high}")


def unsupported_option(word: bytes) -> CommandError:
    """EXPIRE and its like."""
    return fault(b"ERR Unsupported option " + _shown(word))
