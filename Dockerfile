# The CPU server. Build: a wheel from this folder; run: Python, the wheel, an own user, models in /cache.
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir /wheels/*.whl && rm -r /wheels \
  && useradd --system --uid 10001 sonoran && install -d -o sonoran /cache
USER sonoran
ENV SONORAN_CACHE=/cache HOME=/tmp PYTHONDONTWRITEBYTECODE=1
VOLUME /cache
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=120s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=3)"]
ENTRYPOINT ["sonoran"]
CMD ["serve", "--host", "0.0.0.0"]
