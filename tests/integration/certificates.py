"""Certificates of a test's own authority, made when they are needed: nothing that is committed expires."""

import shutil
import subprocess


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Authority:
    """A certificate authority of the test's own; its certificate is `path`."""

    def __init__(self, folder):
        folder.mkdir(exist_ok=True)
        self.path, self._key = folder / "ca.crt", folder / "ca.key"
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", self._key)
        openssl("req", "-x509", *key, "-out", self.path, "-days", 2, "-subj", "/CN=authority of a test")

    def issue(self, folder, name, alternatives=None, days=2):
        """tls.crt and tls.key for `name`, with the authority's ca.crt beside them; with days=0 it has expired."""
        folder.mkdir(parents=True, exist_ok=True)
        request, extra = folder / "request", folder / "extensions"
        extra.write_text(f"subjectAltName={alternatives or f'DNS:{name}'}\nextendedKeyUsage=serverAuth,clientAuth\n")
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", folder / "tls.key")
        openssl("req", *key, "-out", request, "-subj", f"/CN={name}")
        by = ("-CA", self.path, "-CAkey", self._key, "-CAcreateserial", "-extfile", extra)
        openssl("x509", "-req", "-in", request, *by, "-days", days, "-out", folder / "tls.crt")
        shutil.copy(self.path, folder / "ca.crt")
        return folder
