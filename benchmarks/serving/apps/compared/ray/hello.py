from ray import serve
from starlette.requests import Request


@serve.deployment
class Hello:
    async def __call__(self, request: Request) -> dict:
        return {"hello": (await request.json())["name"]}


app = Hello.bind()
