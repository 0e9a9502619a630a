def hello(name: str) -> dict:
    return {"hello": name}
