# A server of models: not root, a read-only file system, a health check. docs/serve.md says how to run it.
#   docker build -t endocil .
#   docker run --rm --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
#     -v "$PWD/models:/models:ro" -v "$PWD/token:/run/secrets/token:ro" -p 127.0.0.1:8000:8000 endocil \
#     /models/released.endocil --only-gated --name localhost
FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
# such as --build-arg PIP_OPTIONS="--index-url ...": an index with torch for processors alone makes the image far smaller
ARG PIP_OPTIONS=""
RUN python -m venv /opt/endocil \
 && /opt/endocil/bin/pip install --no-cache-dir $PIP_OPTIONS -c constraints.txt '.[serve,dicom]'

FROM python:3.11-slim
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin endocil
COPY --from=build /opt/endocil /opt/endocil
# nothing is written: models and token are mounted, and the cache of images is not used by a server
ENV PATH=/opt/endocil/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp ENDOCIL_CACHE=/tmp/endocil
USER 10001:10001
WORKDIR /tmp
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/api/v1/health', timeout=4)"]
ENTRYPOINT ["endocil", "serve", "--host", "0.0.0.0", "--port", "8000", "--token-file", "/run/secrets/token"]
CMD ["/models/model.endocil"]
