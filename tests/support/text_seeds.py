"""Valid inputs of the fuzz targets of texts, which tests/cpp/make_corpus.py writes."""

from __future__ import annotations

URIS = {
    0: (
        *("model.tensors", "~/m", "~root/a/b", "file:///tmp/a%20b", "file://localhost/x", "fd:3"),
        *("/dev/stdin", "/proc/self/fd/7", "https://user:pw@host:8443/a/b?sig=1#f"),
        *("s3://bucket/a/b.safetensors", "redis://:pw@host:1/p", "unix:///run/redis?prefix=m&db=2"),
    ),
    1: (
        *("http://h", "https://[::1]:1/a/../b?q#f", "http://EXAMPLE.com:80/%41", "https://u:p@h/"),
        "https://host/model.safetensors?version=3",
    ),
    2: ("host/a /b", "host/a https://other/c", "h:1/a/b ../c?d", "h/a //h2/b", "h/x http://h/y"),
    3: ("bucket/key", "bucket/a/b?c=%2F", "a.b-c//key"),
    4: ("host/prefix", "host:7000/a/b", "/run/redis.sock?prefix=a%2Fb&db=3", "[::1]:1/p"),
}

OPTIONS = (
    "connections=8\nchunk_size=65536\nretries=0\ntimeout=1.5\nheader.Authorization=Bearer $",
    "ca_file=/x\ninsecure=true\nhttp2=false\nmax_bandwidth=100",
    "s3_access_key_id=$\ns3_secret_access_key=$\ns3_session_token=$\ns3_endpoint=https://h",
    "s3_region=eu-west-1\ns3_addressing=path\ns3_version_id=1\nforce_http=true\nanonymous=false",
    "redis_user=$\nredis_password=$\nredis_database=2\nttl=10\noverwrite=false",
    "key=named:release\nkdf_limit=sensitive\nrequire_authenticated=true\nmemory_ceiling=67108864",
    "key=passphrase-env:P\nkdf=interactive\nfsync=true\nformat=safetensors\nmax_shard_size=1000",
    "digest=sha256:" + "0a" * 32 + "\nstaging=1000000\nshare=true\ndigest_chunk=65536",
)

HEAD = (
    'ETag: "9b-1"\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\n'
    "Date: Mon, 07 Nov 1994 08:49:37 GMT\n"
    "Content-Range: bytes 0-99/1234\nContent-Length: 100\nRetry-After: 3"
)
COMPLETED = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<CompleteMultipartUploadResult xmlns="http://s3/">'
    "<Location>l</Location><ETag>&quot;x-2&quot;</ETag></CompleteMultipartUploadResult>"
)
DENIED = "<Error><Code>AccessDenied</Code><Message>no &#x3c; &amp;</Message></Error>"
ANSWERS = {
    0: (HEAD, 'Retry-After: Fri, 31 Dec 2100 23:59:59 GMT\nETag: W/"x"\nContent-Encoding: gzip'),
    1: (COMPLETED, DENIED, "<a:R><!-- c --><a:Code b='c'><![CDATA[x]]></a:Code></a:R>"),
    2: ("a & b < c", ""),
    3: ('{"AccessKeyId": "A\\u00e9", "n": -1, "x": {"y": [1]}, "t": true}', "{}"),
    4: ("2026-01-31T23:59:59Z", "2026-01-31 23:59:59.123+01:00", "2300-01-01T00:00:00"),
    5: ('a \'b c\' "d\\"" e\\ f', "program --option=1"),
    6: (
        f"{HEAD}\n\n{COMPLETED}",
        f"{HEAD}\n\n",
        "x-amz-checksum-crc32: AAAAAA==-2\nContent-Length: 1048576\n\n",
        "\n\n<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>",
    ),
}

REPLIES = (
    "+OK\r\n-ERR no\r\n:-7\r\n$5\r\na\r\nbc\r\n$0\r\n\r\n$-1\r\n*-1\r\n*0\r\n",
    "*3\r\n*2\r\n:1\r\n$1\r\n\n\r\n$-1\r\n*1\r\n*0\r\n:9223372036854775807\r\n",
    "$3\r\nabc\r\n*2\r\n$1\r\n0\r\n*1\r\n$2\r\nab\r\n",
)

AWS_FILES = (
    "[default]\naws_access_key_id = A\naws_secret_access_key = $\n%%\n"
    "[default]\nregion = eu-west-1\ns3 =\n  addressing_style = path\n  endpoint_url = http://h:1\n"
    "[profile b]\nrole_arn = arn:x\n"
    "source_profile = default\n[services s]\ns3 =\n  endpoint_url = https://h\n%%\n[default]\n"
    "access_key = A\nsecret_key = $\nhost_base = s3.amazonaws.com\nbucket_location = EU\n"
    "use_https = False\n",
    "%%\n[default]\nservices = s\nsso_session = x\n[services s]\ns3 =\n  endpoint_url = https://h\n",
    '%%\n%%\n[default]\naccess_key = "A"\nsecret_key=$\nhost_base = h:9000\nuse_https = no\n',
)


def numbered(kinds: dict[int, tuple[str, ...]]) -> dict[str, bytes]:
    """Return seeds whose first byte is the kind."""
    return {
        f"{kind}-{i}": bytes([kind]) + text.encode()
        for kind, texts in kinds.items()
        for i, text in enumerate(texts)
    }


def listed(texts: tuple[str, ...], prefix: bytes = b"") -> dict[str, bytes]:
    return {str(i): prefix + text.encode() for i, text in enumerate(texts)}


SEEDS: dict[str, dict[str, bytes]] = {
    "fuzz_uri": numbered(URIS),
    "fuzz_options": listed(OPTIONS),
    "fuzz_answers": numbered(ANSWERS),
    "fuzz_redis": listed(REPLIES, b"\2"),
    "fuzz_aws_files": listed(AWS_FILES),
}
