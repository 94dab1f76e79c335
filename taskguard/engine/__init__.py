"""One delivery protocol for every queue: what a call, a worker and a worker's parent do about a key.

Nothing in here knows a clock, a store or a queue. A machine (`publisher.Call`, `worker.Delivery`) takes events and
answers with effects; `drive` carries them out, those of the store through the guard, the others through the queue's
adapter, its *port*. The model and the simulation explore the very same machines.
"""
