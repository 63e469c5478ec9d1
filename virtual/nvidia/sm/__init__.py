"""The virtual streaming multiprocessors: PTX translated once to native code, a warp as a vector."""
