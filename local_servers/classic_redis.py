"""Saves tensors to Redis with the original tensorizer from PyPI."""

from __future__ import annotations

from tensorizer import TensorDeserializer, TensorSerializer

from local_servers.redis_server import RedisServer


def classic_save(server: RedisServer, path: str, prefix: str, tensors: object) -> None:
    """Save to a file, then copy it to Redis: tensorizer has no other way."""
    serializer = TensorSerializer(path)
    serializer.write_state_dict(tensors)
    serializer.close()
    with TensorDeserializer(path, device="cpu", lazy_load=True) as lazy, server.client() as client:
        lazy.to_redis(client, prefix, force=True)
