"""What programs of this machine say to each other over TCP, and what can be found in it."""

from __future__ import annotations

import base64
import socket
import struct
import threading
from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from typing_extensions import Self

# linux/if_ether.h, linux/if_packet.h, linux/socket.h, asm-generic/socket.h
ETH_P_ALL, PACKET_OUTGOING, SOL_PACKET, PACKET_STATISTICS, SO_RCVBUFFORCE = 3, 4, 263, 6, 33
BUFFER_BYTES = 512 * 1024 * 1024
LARGEST_PACKET = 256 * 1024
TCP = 6


class Sniffer:
    """Takes root's rights. `streams` has what was sent on each connection, in each of its directions."""

    def __init__(self) -> None:
        self.streams: dict[bytes, bytearray] = defaultdict(bytearray)
        self.lost = 0
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        self._socket.bind(("lo", ETH_P_ALL))
        self._socket.settimeout(0.2)
        self._is_running = True
        self._thread = threading.Thread(target=self._receive)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        self._is_running = False
        self._thread.join()
        _, self.lost = struct.unpack("II", self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        self._socket.close()

    def _receive(self) -> None:
        while True:
            try:
                packet, address = self._socket.recvfrom(LARGEST_PACKET)
            except TimeoutError:
                if not self._is_running:
                    return
            else:
                if address[2] != PACKET_OUTGOING:  # each one passes twice
                    self._keep(packet)

    def _keep(self, packet: bytes) -> None:
        is_ip4, header = packet[0] >> 4 == 4, (packet[0] & 15) * 4 if packet[0] >> 4 == 4 else 40
        if packet[9 if is_ip4 else 6] == TCP:
            begin = header + (packet[header + 12] >> 4) * 4
            addresses = packet[12:20] if is_ip4 else packet[8:40]
            self.streams[addresses + packet[header : header + 4]] += packet[begin:]


def forms(secret: bytes) -> Iterator[bytes]:
    """How a secret may look where it is sent, kept or shown."""
    yield secret
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    yield repr(secret)[2:-1].encode()
    for numbers in (secret, [number - 256 if number > 127 else number for number in secret]):
        for between in (", ", ","):
            yield between.join(map(str, numbers)).encode()
    for start in range(3):  # at which it stands in what is encoded, without the characters that it shares with others
        encoded = base64.b64encode(bytes(start) + secret)
        yield encoded[-(-start * 4 // 3) : (start + len(secret)) * 4 // 3]


def found(secrets: Iterable[bytes], places: Iterable[bytes | bytearray]) -> set[bytes]:
    """Those of the secrets that are somewhere in the places, in whatever form."""
    by_beginning: dict[int, list[tuple[bytes, bytes]]] = defaultdict(list)
    for secret, form in chain.from_iterable(((secret, form) for form in forms(secret)) for secret in secrets):
        by_beginning[int.from_bytes(form[:8], "little")].append((secret, form))
    is_first = np.zeros(2**16, bool)
    is_first[[beginning % 2**16 for beginning in by_beginning]] = True
    hits: set[bytes] = set()
    for place in places:
        for shift in range(8):
            words = np.frombuffer(place, "<u8", max(len(place) - shift, 0) // 8, min(shift, len(place)))
            for index in np.flatnonzero(is_first[words % 2**16]):
                at = int(index) * 8 + shift
                for secret, form in by_beginning.get(int(words[index]), ()):
                    if place[at : at + len(form)] == form:
                        hits.add(secret)
    return hits
