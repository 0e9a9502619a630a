from fastapi import Body, FastAPI

app = FastAPI()


@app.post("/hello")
def hello(name: str = Body(embed=True)):
    return {"hello": name}
