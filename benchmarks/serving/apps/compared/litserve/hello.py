import litserve as ls


class Hello(ls.LitAPI):
    def setup(self, device):
        pass

    def predict(self, request):
        return {"hello": request["name"]}


if __name__ == "__main__":
    ls.LitServer(Hello()).run(port=8000)
