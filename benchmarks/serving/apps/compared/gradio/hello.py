import gradio as gr


def hello(name):
    return {"hello": name}


gr.Interface(hello, "text", "json", api_name="hello").launch()
