"""A broker, a producer, a worker that dies and one that takes over: no server, nothing to set up."""

from __future__ import annotations

from millstream import Broker, ManualClock

clock = ManualClock()
broker = Broker(clock=clock)

# Direct calls: typed, bytes in and out, about a microsecond or two each.
broker.xgroup_create("orders", "billing", "0", mkstream=True)
for number in range(1, 6):
    broker.xadd("orders", {"number": number, "amount": 10 * number})
print("orders in the stream:", broker.xlen("orders"))

# Two workers of one group share the entries.
for entry in broker.xreadgroup("billing", "worker-1", {"orders": ">"}, count=3)[b"orders"]:
    print("worker-1 got", entry.id.decode(), entry.fields)
first, second, third = (row.id for row in broker.xpending_range("orders", "billing"))

broker.xack("orders", "billing", first)  # done
broker.xnack("orders", "billing", third)  # given back: anybody may have it at once
# ... and worker-1 dies here, with `second` still in its hands.

clock.advance(60_000)

# The other worker: what was given back first, then what has been idle for 30 seconds, then new entries.
for entry in broker.xreadgroup("billing", "worker-2", {"orders": ">"}, claim_ms=30_000)[b"orders"]:
    print("worker-2 got", entry.id.decode(), "after", entry.delivery_count, "earlier deliveries")
    broker.xackdel("orders", "billing", entry.id)

# The same broker through redis-py, as any program that knows Redis would use it.
client = broker.client(decode_responses=True)
print("pending now:", client.xpending("orders", "billing")["pending"])
print("left in the stream:", [entry_id for entry_id, _ in client.xrange("orders")])
with client.lock("orders:report", timeout=10):
    client.hincrby("orders:done", "worker-2", 4)
print("beside the stream:", client.hgetall("orders:done"))
broker.close()
