"""Local: every client learns alone. The reference all federated methods are compared with."""

from typing import ClassVar

from fedjax_mm.methods.method import Method, method


@method
class Local(Method):
    """Cross-entropy on the client's own data; nothing is sent."""

    name: ClassVar[str] = "local"
