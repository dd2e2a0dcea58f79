# Not built where this was written, which has no Docker engine.
# docker build --tag project .                          for CPUs
# docker build --tag project --build-arg TORCH=cu130 .  for NVIDIA GPUs; docker run --gpus all
# docker run --rm --shm-size 2g --volume "$PWD/runs:/project/runs" project python -m project.fit
FROM python:3.11-slim
ARG TORCH=cpu
ENV UV_TORCH_BACKEND=$TORCH UV_LINK_MODE=copy PYTHONUNBUFFERED=1
RUN apt-get update && apt-get install --yes --no-install-recommends g++ git && rm -rf /var/lib/apt/lists/*
WORKDIR /project
RUN pip install --no-cache-dir uv
COPY packages packages
RUN uv pip install --system --no-cache "packages/lightkeeper[images,cli]"
COPY requirements.txt ./
RUN uv pip install --system --no-cache --requirement requirements.txt
COPY . .
RUN uv pip install --system --no-cache --no-deps .
CMD ["python", "-m", "project.fit"]
