"""The pages of the shop."""

from __future__ import annotations

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from shop.models import Order
from shop.tasks import confirm


@csrf_exempt
@require_POST
def place(request: HttpRequest) -> JsonResponse:
    """Take an order. If the transaction rolls back, neither the order nor its job is there."""
    with transaction.atomic():
        order = Order.objects.create(email=request.POST["email"])
        result = confirm.enqueue(order.pk)
    return JsonResponse({"order": order.pk, "job": result.id}, status=201)


def show(request: HttpRequest, number: int) -> JsonResponse:
    """An order, and what its job has returned."""
    order = get_object_or_404(Order, pk=number)
    if not order.confirmed_by:
        return JsonResponse({"order": order.pk, "confirmed": False})
    result = confirm.get_result(order.confirmed_by)
    value = result.return_value if result.is_finished else None
    return JsonResponse({"order": order.pk, "confirmed": True, "status": result.status, "value": value})
