"""What PyPI's tensorizer writes to Redis."""

from __future__ import annotations

from tensorizer import TensorDeserializer, TensorSerializer

from local_servers.redis_server import RedisServer


def classic_save(server: RedisServer, path: str, prefix: str, tensors: object) -> None:
    """As tensorizer does it: from a file."""
    serializer = TensorSerializer(path)
    serializer.write_state_dict(tensors)
    serializer.close()
    with TensorDeserializer(path, device="cpu", lazy_load=True) as lazy, server.client() as client:
        lazy.to_redis(client, prefix, force=True)
