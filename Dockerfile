# SPDX-License-Identifier: Apache-2.0
#
# docker build -t cowshed . && docker run -v cowshed:/var/lib/cowshed -p 127.0.0.1:7420:7420 cowshed
#
# Both stages take their packages from deploy/packages.txt.

FROM debian:12-slim AS build
WORKDIR /src
COPY deploy/packages.txt deploy/
RUN apt-get update \
 && apt-get install -y --no-install-recommends $(sed -n 's/^run //p' deploy/packages.txt)
COPY . .
RUN cmake --preset release -DBUILD_TESTING=OFF -DCOWSHED_BENCH=OFF \
 && cmake --build build/release \
 && DESTDIR=/out cmake --install build/release --strip --prefix /usr

FROM debian:12-slim
COPY deploy/packages.txt /tmp/
RUN apt-get update \
 && apt-get install -y --no-install-recommends $(sed -n 's/^image //p' /tmp/packages.txt) \
 && rm -rf /var/lib/apt/lists/* /tmp/packages.txt \
 && useradd --system --uid 7420 --home-dir /var/lib/cowshed --create-home --shell /usr/sbin/nologin \
      cowshed
COPY --from=build /out/ /
USER cowshed
VOLUME /var/lib/cowshed
EXPOSE 7420 9742
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["cowshed", "health"]
# A container is reached from outside, so it listens on all of its own addresses, and without TLS:
# who may connect is for the container's network to say (docs/security.md).
CMD ["cowshed", "serve", "--pool", "/var/lib/cowshed", \
     "--listen", "0.0.0.0:7420", "--insecure", "--metrics-listen", "0.0.0.0:9742"]
