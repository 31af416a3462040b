# The operator's image. All stages start from the same Python, so that the environment moves between them as it is.
# Any Debian or Ubuntu with python3 (3.11 or newer), python3-venv and python3-pip serves as BASE.
ARG BASE=python:3.11-slim

FROM ${BASE} AS packages
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /build
COPY requirements/runtime.lock .
# pip has an environment of its own: the one that moves on holds nothing that installs. It finds the operator's code by
# the .pth file. A private index comes in by --secret id=pip,src=pip.conf and leaves no trace. Compiled files are not
# checked against their sources later: neither can change in an image.
RUN --mount=type=secret,id=pip,target=/run/secrets/pip.conf \
    if [ -e /run/secrets/pip.conf ]; then export PIP_CONFIG_FILE=/run/secrets/pip.conf; fi \
 && python3 -m venv /opt/pip \
 && python3 -m venv --without-pip /opt/sglang-operator \
 && /opt/pip/bin/python -m pip --python /opt/sglang-operator/bin/python \
    install --no-compile --only-binary :all: --require-hashes --requirement runtime.lock \
 && packages=$(/opt/sglang-operator/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
 && echo /opt/sglang-operator/code >"$packages/sglang-operator.pth" \
 && /opt/sglang-operator/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash "$packages"

FROM ${BASE} AS code
COPY operator/sglang_operator /code/sglang_operator
COPY operator/sglang_specpatch /code/sglang_specpatch
RUN python3 -m compileall -q --invalidation-mode unchecked-hash -s /code -p /opt/sglang-operator/code /code

FROM ${BASE}
# Safe path: the working directory is never searched for modules. HOME: user 65532 has no entry in /etc/passwd.
ENV PATH=/opt/sglang-operator/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1
WORKDIR /
USER 65532:65532
EXPOSE 8080 9090
ENTRYPOINT ["python3", "-m", "sglang_operator"]
# The packages first: a new version of the operator alone is a small layer.
COPY --from=packages /opt/sglang-operator /opt/sglang-operator
COPY --from=code /code /opt/sglang-operator/code
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sglang-operator" \
      org.opencontainers.image.description="Kubernetes operator for SGLang with speculative decoding that follows the load" \
      org.opencontainers.image.source="https://github.com/sglang-operator/sglang-operator" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
