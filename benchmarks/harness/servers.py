"""The web server to load from, which the tests use as well, with a process for each CPU."""

from functools import partial

from benchmarks.harness.results import THREADS
from local_servers.web import nginx

web_server = partial(nginx, workers=THREADS)
