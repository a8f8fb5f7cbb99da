"""raises() is how these checks expect an error."""


def raises(kind, text, f, *args, **kwargs):
    try:
        f(*args, **kwargs)
    except kind as error:
        assert text in str(error), f"expected '{text}' in: {error}"
        return
    raise AssertionError(f"expected {kind.__name__}: {text}")
