"""A server of Spark Connect 3.5, which listens on loopback only.

The server's own program would listen on all addresses of the machine: its setting for the
address came with Spark 4.0. So this one starts a session, and has its JVM run the same service at
an address of loopback. The Python of Spark 3.5 runs it (:mod:`tests.matrix.environments`)::

    python -m tests.support.oldest_connect PORT JARS FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

_MOST_BYTES = 128 << 20
_SERVICE = "org.apache.spark.sql.connect.service.SparkConnectService"


def listen(spark: Any, port: int) -> None:
    """Start the service in a session's JVM, as its own ``start`` does, but at an address."""
    jvm, context = spark._jvm, spark.sparkContext
    kind = jvm.java.lang.Class.forName(f"{_SERVICE}$")
    service = kind.getField("MODULE$").get(None)
    builders = jvm.org.sparkproject.connect.grpc.netty.NettyServerBuilder
    builder = builders.forAddress(jvm.java.net.InetSocketAddress("127.0.0.1", port))
    builder = builder.maxInboundMessageSize(_MOST_BYTES)
    server = builder.addService(getattr(jvm, _SERVICE)(False)).build()
    # The worker of foreachBatch is told the port of this server.
    getattr(service, "server_$eq")(server)
    server.start()
    listener = next(
        each for each in kind.getDeclaredMethods() if each.getName() == "createListenerAndUI"
    )
    listener.setAccessible(True)
    given = context._gateway.new_array(jvm.java.lang.Object, 1)
    given[0] = context._jsc.sc()
    listener.invoke(service, given)


def main(port: str, jars: str, folder: str) -> None:
    """Serve until the process is told to end."""
    from tests.support.connect import SETTINGS
    from tests.support.spark import session

    class_path = os.pathsep.join(f"{each}/*" for each in jars.split(os.pathsep))
    settings = {**SETTINGS, "spark.driver.extraClassPath": class_path}
    spark = session(Path(jars.split(os.pathsep)[0]), Path(folder), settings=settings)
    listen(spark, int(port))
    signal.sigwait([signal.SIGTERM])
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
