"""What a pipeline or a checkpoint needs besides its weights: prompts, labels, size."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ld3.errors import bad_option

CAPTIONS = (
    "Two individuals learning to ski along with an instructor.",
    "A man sitting on a chair that is on a deck over the water.",
    "A dog sitting at a table in front of a plate.",
    "Four people sit around eating food outside together.",
    "A cat dips its paws into a cup on a nightstand.",
)
"""The five captions of MS-COCO that the LD3 paper learns text-to-image plans with."""

Prompt = Annotated[str, Field(max_length=5000)]
Size = Annotated[int, Field(ge=8, le=16384)]
NetTime = Literal["float", "integer", "bfloat16"]


class PipelineOptions(BaseModel):
    """How a pipeline is used as a model; stored in a plan, so that it can be loaded again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompts: Annotated[tuple[Prompt, ...], Field(min_length=1, max_length=50_000)] = CAPTIONS
    negative_prompt: Prompt | None = None  # what guidance leads away from
    classes: Annotated[tuple[int, ...], Field(min_length=1, max_length=1000)] | None = None
    height: Size | None = None  # in pixels
    width: Size | None = None  # in pixels
    frames: Annotated[int, Field(ge=1, le=10_000)] | None = None  # of a video
    tokens: Annotated[int, Field(ge=1, le=4096)] | None = None  # length of a prompt
    embedded_guidance: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = 3.5
    rectified: bool = False  # the network is a flow from noise to data
    latents: bool = False  # latents are compared, not images
    tiling: bool = False  # decoding in tiles
    net_time: NetTime = "float"  # rounding of the time that the network gets
    config: Annotated[str, Field(max_length=1000)] | None = None  # of a checkpoint
    clamp: bool = False  # x0 of a checkpoint to [-1, 1]
    batch: Annotated[int, Field(ge=1, le=4096)] = 8  # samples in one call of the network

    @classmethod
    def checked(cls, words: dict[str, Any]) -> "PipelineOptions":
        """From names and values; unknown names and bad values are a :class:`SpecError`."""
        try:
            return cls.model_validate(words)
        except ValidationError as error:
            raise bad_option(cls, error, "option of a pipeline") from None

    def said(self) -> dict[str, Any]:
        """What differs from the defaults, as JSON holds it."""
        return self.model_dump(mode="json", exclude_defaults=True)
