"""A folder that transformers loads has our hidden states, and a masked model's predictions at every dim."""

import pytest
import torch
from export_models import TEXTS, image_model, text_model

from matryo.encoders import Tokens
from matryo.errors import InputError
from matryo.export import export

transformers = pytest.importorskip("transformers")


def tokens_of(model):
    ids, mask = model.tokenizer.encode(TEXTS, 24)
    return Tokens(torch.from_numpy(ids).long(), torch.from_numpy(mask))


def test_a_bert_is_a_bert(tmp_path):
    model = text_model()
    folder = export(model, "transformers", tmp_path / "out")
    theirs, report = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    assert type(theirs) is transformers.BertModel
    assert theirs.config.matryoshka_dimensions == [8, 32, 128]
    tokens = tokens_of(model)
    with torch.no_grad():
        got = theirs.eval()(input_ids=tokens.ids, attention_mask=tokens.mask.long()).last_hidden_state
        torch.testing.assert_close(got[tokens.mask], model.network.encoder.hidden(tokens)[tokens.mask],
                                   atol=1e-5, rtol=1e-5)  # fmt: skip
    names = transformers.AutoTokenizer.from_pretrained(folder)
    assert names(TEXTS[0])["input_ids"] == tokens.ids[0][tokens.mask[0]].tolist()


def test_a_masked_model_predicts_the_same_words(tmp_path):
    model = text_model(kind="masked")
    folder = export(model, "transformers", tmp_path / "out")
    theirs, report = transformers.AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    assert type(theirs) is transformers.BertForMaskedLM
    tokens, network = tokens_of(model), model.network
    with torch.no_grad():
        got = theirs.eval()(input_ids=tokens.ids, attention_mask=tokens.mask.long()).logits
        z = network.transform(network.encoder.hidden(tokens))
        torch.testing.assert_close(got[tokens.mask], (z @ network.words.T + network.bias)[tokens.mask],
                                   atol=1e-4, rtol=1e-4)  # fmt: skip
    assert theirs.config.is_matryoshka


def test_what_transformers_would_not_apply_is_refused(tmp_path):
    rule = r"transformers has no place for this model .*export it to sentence-transformers or onnx"
    with pytest.raises(InputError, match=rule):
        export(text_model(dim=48, dims=(8, 48)), "transformers", tmp_path / "out")
    with pytest.raises(InputError, match=r"transformers has no place .*resnet18\): export it to timm or onnx"):
        export(image_model(), "transformers", tmp_path / "out")
