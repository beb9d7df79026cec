"""The profile routes: what reaches the engine, and what is refused before it does."""

from __future__ import annotations

from radixlang.errors import RequestError
from radixlang.server.profiling import profile_arguments, profile_body

from .fakes import live

NOTHING = {"output_dir": None, "num_steps": None, "activities": None, "with_stack": False, "record_shapes": False}


def test_start_and_stop() -> None:
    with live() as server:
        asked = server.engine.profiles
        assert server.http.post("/start_profile").json() == {"path": "x.trace.json.gz", "num_steps": None}
        assert asked[-1] == NOTHING
        body = {"output_dir": "/a", "num_steps": 5, "activities": ["CPU"], "with_stack": True, "start_step": None}
        assert server.ok("/start_profile", body)["num_steps"] == 5
        assert asked[-1] == NOTHING | {
            "output_dir": "/a",
            "num_steps": 5,
            "activities": ["CPU"],
            "with_stack": True,
        }
        query = "?output_dir=/b&num_steps=7&activities=CPU,GPU&record_shapes=true"
        assert server.http.get("/start_profile" + query).status_code == 200
        wanted = {"output_dir": "/b", "num_steps": 7, "activities": ["CPU", "GPU"], "record_shapes": True}
        assert asked[-1] == NOTHING | wanted
        for method in ("GET", "POST", "GET"):
            assert server.http.request(method, "/stop_profile").json() == {"path": "x.trace.json.gz"}
        refused = server.http.post("/stop_profile")
        assert refused.status_code == 400
        assert refused.json()["error"]["message"] == "No profile is running."


def test_refusals() -> None:
    with live() as server:
        for body, words in (
            ({"num_steps": 0}, "num_steps"),
            ({"num_steps": "x"}, "num_steps"),
            ({"activities": []}, "activities"),
            ({"activities": "CPU"}, "activities"),
            ({"output_dir": ""}, "output_dir"),
            ({"start_step": 3}, "start_step is not supported"),
            ({"profile_by_stage": True}, "profile_by_stage is not supported"),
        ):
            assert words in server.refused("/start_profile", body)["message"]
        for query in ("num_steps=0", "num_steps=x", "with_stack=perhaps", "output_dir="):
            assert server.http.get("/start_profile?" + query).status_code == 400
        assert server.engine.profiles == []


def test_they_need_the_admin_key() -> None:
    with live(admin_api_key="root", api_key="user") as server:
        for path in ("/start_profile", "/stop_profile"):
            assert server.http.post(path, headers={"authorization": "Bearer user"}).status_code == 401
        assert server.http.post("/start_profile", headers={"authorization": "Bearer root"}).status_code == 200


def test_arguments_of_the_engine_s_method() -> None:
    assert profile_arguments(profile_body({})) == NOTHING
    for values in ({"steps": 3}, {"num_steps": "3"}, {"merge_profiles": True}):
        try:
            profile_arguments(profile_body(values))
        except RequestError:
            continue
        raise AssertionError(values)
