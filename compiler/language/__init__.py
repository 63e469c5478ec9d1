"""Language models from GGUF files: the decoder, its tokenizer, sampling and chat templates.

`ugpu chat` and `ugpu serve-llm` use this package; `LanguageModel` is its entry:

    model = LanguageModel("model.gguf", device=gpu)
    for piece in model.chat([{"role": "user", "content": "Hello"}]):
        print(piece, end="", flush=True)
"""
