#!/usr/bin/env python3
"""bus_name.py NAME: has NAME on the system's D-Bus, and answers each method by an error:
a manager that says nothing of its own.
"""

import socket
import struct
import sys

CALL, ERROR = 1, 3
PATH, INTERFACE, MEMBER, ERROR_NAME, REPLY_SERIAL, DESTINATION, SENDER, SIGNATURE = range(1, 9)
OF_FIELD = {
    PATH: b"o",
    INTERFACE: b"s",
    MEMBER: b"s",
    ERROR_NAME: b"s",
    REPLY_SERIAL: b"u",
    DESTINATION: b"s",
    SENDER: b"s",
    SIGNATURE: b"g",
}


def padded(data, to):
    return data + bytes(-len(data) % to)


def string(text):
    return struct.pack("<I", len(text)) + text.encode() + b"\0"


def message(kind, serial, fields, body=b""):
    array = b""
    for code, value in fields.items():
        of = OF_FIELD[code]
        array = padded(array, 8) + bytes([code, 1]) + of + b"\0"
        array += (
            struct.pack("<I", value)
            if of == b"u"
            else bytes([len(value)]) + value.encode() + b"\0" if of == b"g" else string(value)
        )
    head = struct.pack("<cBBBIII", b"l", kind, 0, 1, len(body), serial, len(array))
    return padded(head + array, 8) + body


def read(stream):
    """Kind, serial and header fields of the next message."""
    head = stream.read(16)
    if len(head) < 16:
        sys.exit(0)
    _, kind, _, _, length, serial, array = struct.unpack("<cBBBIII", head)
    data, at, fields = stream.read(-(-array // 8) * 8), 0, {}
    stream.read(length)
    while at < array:
        at += -at % 8
        code, of = data[at], data[at + 2 : at + 3]
        at += 4
        if of == b"u":
            fields[code], at = struct.unpack_from("<I", data, at)[0], at + 4
        elif of == b"g":
            fields[code], at = data[at + 1 : at + 1 + data[at]].decode(), at + data[at] + 2
        else:
            size = struct.unpack_from("<I", data, at)[0]
            fields[code], at = data[at + 4 : at + 4 + size].decode(), at + size + 5
    return kind, serial, fields


def main():
    bus = socket.socket(socket.AF_UNIX)
    bus.connect("/run/dbus/system_bus_socket")
    stream = bus.makefile("rb")
    bus.sendall(b"\0AUTH EXTERNAL 30\r\n")
    stream.readline()
    bus.sendall(b"BEGIN\r\n")
    to = {
        PATH: "/org/freedesktop/DBus",
        INTERFACE: "org.freedesktop.DBus",
        DESTINATION: "org.freedesktop.DBus",
    }
    bus.sendall(message(CALL, 1, {**to, MEMBER: "Hello"}))
    body = padded(string(sys.argv[1]), 4) + struct.pack("<I", 0)
    bus.sendall(message(CALL, 2, {**to, MEMBER: "RequestName", SIGNATURE: "su"}, body))
    serial = 2
    while True:
        kind, of, fields = read(stream)
        if kind == CALL:
            serial += 1
            bus.sendall(
                message(
                    ERROR,
                    serial,
                    {
                        ERROR_NAME: "org.freedesktop.DBus.Error.UnknownMethod",
                        REPLY_SERIAL: of,
                        DESTINATION: fields[SENDER],
                    },
                )
            )


if __name__ == "__main__":
    main()
