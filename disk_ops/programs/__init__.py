"""The programs behind the ``disk-ops`` command: one module each, with ``run(arguments) -> exit status``."""
