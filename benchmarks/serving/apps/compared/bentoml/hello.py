import bentoml


@bentoml.service
class Hello:
    @bentoml.api
    def hello(self, name: str) -> dict:
        return {"hello": name}
