"""Fresh ranks for every launch: ``Launcher.run(function, world_size=4)`` returns what each rank returned.

These modules start ranks and exchange messages with them. ``faults`` finds which rank has failed or hangs, and why;
``preloading`` imports modules before ranks are forked; ``nodes`` runs ranks on other machines. Fork servers and
nodes get the same requests: ``messages.Ask`` names a method of the object at the other end of a socket. Importing this
package imports neither torch nor numpy; only ranks import them.
"""
