"""One delivery protocol for every queue: what a call, a worker and a worker's parent do about a key.

The machines (`publisher.Call`, `worker.Delivery`) know no clock, no store and no queue. They take events and return
effects. `drive` carries the effects out: those on the store through the guard, the others through the queue's adapter,
its *port*. The model and the simulation explore the same machines.
"""
