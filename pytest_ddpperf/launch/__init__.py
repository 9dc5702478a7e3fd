"""Fresh ranks for every launch: ``Launcher.run(function, world_size=4)`` gives back what each rank returned.

The modules of this folder start ranks and talk with them; ``faults`` finds which rank has failed or hangs, and why,
``preloading`` spares ranks their imports, and ``nodes`` has the ranks of other machines. A fork server and a node are
asked alike: ``messages.Ask`` names a method of what serves the other end of a socket. Importing this package imports
neither torch nor numpy; only the ranks have them.
"""
