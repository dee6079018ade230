"""Starts nginx web servers on a free port of this machine."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from local_servers.waiting import LAST_RESORT, listens, wait_until

PASSWORD = "open sesame"

CONFIGURATION = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
worker_processes {workers};
events {{ worker_connections 256; }}
http {{
  log_format requests '$connection $remote_addr [$time_local] "$request" $status '
    '$body_bytes_sent "$http_referer" "$http_user_agent"';
  access_log {folder}/access.log requests;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  proxy_cache_path {folder}/cache keys_zone=kept:1m;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  sendfile on;
  client_max_body_size 0;
  default_type application/octet-stream;
  server {{
    listen 127.0.0.1:{port};
    root {root};
    location /no-ranges/ {{ alias {root}/; max_ranges 0; }}
    location /slow/ {{ alias {root}/; limit_rate 1m; }}
    location /private/ {{
      alias {root}/; auth_basic "private"; auth_basic_user_file {folder}/users;
    }}
    location /forbidden/ {{ return 403; }}
    location /moved/ {{ rewrite ^/moved/(.*)$ /$1 redirect; }}
    location /round/ {{ rewrite ^/round/(.*)$ /round/$1 redirect; }}
    location /busy/ {{ return 503; }}
    location /no-etag/ {{ alias {root}/; etag off; }}
    location /to-tls/ {{ rewrite ^/to-tls/(.*)$ https://localhost:{tls_port}/$1 redirect; }}
    location /cached/ {{
      proxy_pass http://127.0.0.1:{port}/; proxy_cache kept; proxy_cache_valid 200 1h;
      proxy_cache_bypass $http_cache_control;
    }}
    location /gzip/ {{ alias {root}/; gzip on; gzip_types *; gzip_min_length 1; }}
    location /put/ {{
      alias {root}/put/; dav_methods PUT DELETE; create_full_put_path on;
    }}
    location /put-small/ {{ alias {root}/put/; dav_methods PUT; client_max_body_size 1m; }}
    location /put-moved/ {{ return 307 /put/$request_uri; }}
    location /put-private/ {{
      alias {root}/put/; dav_methods PUT DELETE;
      auth_basic "private"; auth_basic_user_file {folder}/users;
    }}
    location /token/ {{
      alias {root}/; if ($http_authorization != "Bearer a-token") {{ return 401; }}
    }}
  }}
  server {{
    listen 127.0.0.1:{tls_port} ssl http2;
    root {root};
    ssl_certificate {folder}/server.pem;
    ssl_certificate_key {folder}/server.key;
    ssl_client_certificate {folder}/ca.pem;
    ssl_verify_client optional;
    ssl_protocols {tls};
    ssl_ciphers DEFAULT@SECLEVEL=0;
    location /no-ranges/ {{ alias {root}/; max_ranges 0; }}
    location /in-plain/ {{ return 307 http://127.0.0.1:{port}/zoo.tensors; }}
    location /members/ {{ alias {root}/; if ($ssl_client_verify != SUCCESS) {{ return 403; }} }}
  }}
}}
"""


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return different ports: two calls may find the same one."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]


def full_disk(largest: int | None) -> Callable[[], None] | None:
    """Return a `preexec_fn` that limits the size of a process's files.

    Writing beyond the limit fails, as on a full disk.
    """
    if largest is None:
        return None
    limit = largest

    def prepare() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return prepare


@dataclass
class Web:
    folder: Path
    root: Path
    port: int
    tls_port: int

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def tls_url(self, path: str) -> str:
        return f"https://localhost:{self.tls_port}/{path}"

    @property
    def ca(self) -> str:
        return str(self.folder / "ca.pem")

    def requests(self) -> list[str]:
        """Return the access log's lines since the last call, which begin with the connection."""
        log = self.folder / "access.log"
        # nginx may log a request after its response has arrived, but before the next request. So
        # once this request is in the log, all earlier ones are.
        mark = f"/mark-{uuid.uuid4()}"
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(self.url(mark[1:]), timeout=LAST_RESORT).close()
        wait_until(lambda: mark in log.read_text())
        lines = log.read_text()
        log.write_text("")
        return [line for line in lines.splitlines() if mark not in line]

    def served(self) -> int:
        """Return the bytes of files that were sent since the last call, or that of requests()."""
        return sum(int(line.split('"')[2].split()[1]) for line in self.requests())


def paced_listener(port: int, bytes_per_second: int) -> socket.socket:
    """Return a listening socket that limits the rate of each connection, over all its requests.

    The kernel limits the rate; connections inherit the limit from the listening socket. (nginx's
    limit_rate restarts with each request, with a burst of one second's bytes.)
    """
    so_max_pacing_rate = 47
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, so_max_pacing_rate, bytes_per_second)
    # Other algorithms for congestion control may pace connections on their own.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    # nginx inherits the blocking mode. If it blocked, a worker that loses the race for a connection
    # would wait in accept() for the next one, instead of serving its other connections.
    listener.setblocking(False)
    listener.bind(("127.0.0.1", port))
    listener.listen(256)
    return listener


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def make_certificates(folder: Path) -> None:
    """Create a certificate authority, and certificates that it signed for a server and a client."""
    new = ("req", "-newkey", "rsa:2048", "-nodes", "-subj")
    openssl(folder, *new, "/CN=authority", "-x509", "-keyout", "ca.key", "-out", "ca.pem")
    (folder / "names").write_text("subjectAltName=DNS:localhost")
    for name in ("server", "client"):
        openssl(folder, *new, f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        sign = ("x509", "-req", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
        files = ("-in", f"{name}.csr", "-out", f"{name}.pem", "-extfile", "names")
        openssl(folder, *sign, *files)


@contextmanager
def nginx(
    folder: Path,
    largest: int | None = None,
    *,
    workers: int = 1,
    bytes_per_second: int | None = None,
    tls: str = "TLSv1.2 TLSv1.3",
) -> Iterator[Web]:
    """Start nginx.

    Args:
        folder: for its files; it serves those in `folder`/files.
        largest: limits the size of files: beyond it, the disk seems to be full.
        workers: the number of worker processes.
        bytes_per_second: limits the rate of each connection without TLS.
        tls: the versions of TLS.
    """
    root = folder / "files"
    root.mkdir(parents=True)
    make_certificates(folder)
    (folder / "users").write_text(f"me:{{PLAIN}}{PASSWORD}\n")
    web = Web(folder, root, *free_ports(2))
    configuration = folder / "nginx.conf"
    configuration.write_text(
        CONFIGURATION.format(
            folder=folder,
            root=root,
            workers=workers,
            port=web.port,
            tls_port=web.tls_port,
            tls=tls,
        )
        + ("user root;\n" if os.getuid() == 0 else "")
    )
    command = ["/usr/sbin/nginx", "-c", str(configuration), "-e", str(folder / "error.log")]
    with ExitStack() as stack:
        environment = dict(os.environ)
        sockets: tuple[int, ...] = ()
        if bytes_per_second is not None:
            listener = stack.enter_context(paced_listener(web.port, bytes_per_second))
            sockets = (listener.fileno(),)
            environment["NGINX"] = f"{listener.fileno()};"  # sockets to inherit instead of opening
        process = subprocess.Popen(
            command, pass_fds=sockets, env=environment, preexec_fn=full_disk(largest)
        )
    try:
        wait_until(lambda: listens(web.port), process, folder / "error.log")
        yield web
    finally:
        process.terminate()
        process.wait(LAST_RESORT)
