"""The life of a job as a function of values.

A `Life` holds a job with everything that its next step depends on. Each function of this package takes a life
and something that happened to it, and returns the life afterwards, with the effects that are to be carried
out: events, grants, orders, commands. Nothing here reads a clock, a store or the network, so a whole life can
be played in memory. `service.usecases.jobs.life` loads lives and carries out their effects.

`starts` begins and stops generations, `changes` changes members in place, `losses` reacts to ended processes
and lost nodes, `messages` to reports of ranks, `requests` to users, and `ends` decides what comes after the
last process of a job has ended.
"""
