"""The verbs of `ugpu`. Each module of this folder registers its verbs when it is imported."""
